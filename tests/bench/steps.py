"""Synthetic training steps: weights of realistic scale, moved as AdamW moves them, one tensor at a time.

Weights are N(0, 0.02), which is what large models have in most of their tensors, and norms 1. AdamW's directions are
N(0, 0.3), clipped at 1: whatever the gradients, its step is at most about the learning rate. What this does not show:
gradients that are zero for a whole row of an embedding or an expert, and weights of other scales; `sparsity` does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

Shapes = Mapping[str, tuple[int, ...]]

TINY = Path(__file__).parents[2] / "trainer_box" / "tiny" / "model.safetensors"


@dataclass(frozen=True)
class Step:
    """One tensor before and after a step, both bf16."""

    name: str
    old: torch.Tensor
    new: torch.Tensor


def adamw_steps(shapes: Shapes, learning_rates: Sequence[float]) -> Iterator[tuple[float, Step]]:
    """Every tensor at every learning rate, from the same weights in the same directions."""
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        weights = torch.randn(shape, generator=generator) * 0.02 if len(shape) > 1 else torch.ones(shape)
        directions = torch.randn(shape, generator=generator).mul_(0.3).clamp_(-1, 1)
        old = weights.bfloat16()
        for rate in learning_rates:
            yield rate, Step(name, old, weights.sub(directions, alpha=rate).bfloat16())


def tiny_policy() -> Shapes:
    """The demo's model."""
    with safe_open(TINY, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}


def qwen(layers: int, hidden: int, queries: int, keys: int, mlp: int, vocabulary: int) -> Shapes:
    """A Qwen3's tensors by name; `queries` and `keys` are widths, the embedding is tied."""
    layer = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (128,),
        "self_attn.k_norm": (128,),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    tensors = {f"model.layers.{n}.{name}.weight": shape for n in range(layers) for name, shape in layer.items()}
    return {"model.embed_tokens.weight": (vocabulary, hidden), **tensors, "model.norm.weight": (hidden,)}


def served_20m() -> Shapes:
    return qwen(layers=8, hidden=384, queries=384, keys=128, mlp=1024, vocabulary=16_384)


def qwen3_06b() -> Shapes:
    return qwen(layers=28, hidden=1024, queries=2048, keys=1024, mlp=3072, vocabulary=151_936)


def layer_of_7b() -> Shapes:
    """The embedding and one layer of the 32 of a model of 7 B."""
    return qwen(layers=1, hidden=4096, queries=4096, keys=4096, mlp=11_008, vocabulary=32_000)


def elements(shapes: Shapes) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes.values())
