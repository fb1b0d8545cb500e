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

HEAD = 128  # the width of a head
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


@dataclass(frozen=True)
class Qwen3:
    """Sizes of a Qwen3 whose embedding is the head too. `heads` of queries, `keys` of keys, of HEAD each."""

    layers: int
    hidden: int
    heads: int
    keys: int
    mlp: int
    vocabulary: int


SMALLEST = Qwen3(layers=2, hidden=64, heads=2, keys=1, mlp=128, vocabulary=320)  # for tests
SERVED_20M = Qwen3(layers=8, hidden=384, heads=3, keys=1, mlp=1024, vocabulary=16_384)
QWEN3_06B = Qwen3(layers=28, hidden=1024, heads=16, keys=8, mlp=3072, vocabulary=151_936)  # 596 M parameters
LAYER_OF_7B = Qwen3(layers=1, hidden=4096, heads=32, keys=32, mlp=11_008, vocabulary=32_000)  # and the embedding


def shapes_of(size: Qwen3) -> Shapes:
    """By the names of a checkpoint."""
    hidden, mlp = size.hidden, size.mlp
    queries, keys = size.heads * HEAD, size.keys * HEAD
    layer = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (HEAD,),
        "self_attn.k_norm": (HEAD,),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    tensors = {f"model.layers.{n}.{name}.weight": shape for n in range(size.layers) for name, shape in layer.items()}
    return {"model.embed_tokens.weight": (size.vocabulary, hidden), **tensors, "model.norm.weight": (hidden,)}


def elements(shapes: Shapes) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes.values())
