"""Checkpoints of random weights that vLLM serves: Qwen3-0.6B's shapes, and a small model's. Needs no download."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.bench.steps import Shapes
from tests.bench.trainee import initial


def _qwen3(layers: int, hidden: int, heads: int, keys: int, mlp: int, vocabulary: int) -> Qwen3Config:
    """`heads` of queries and `keys` of keys, of 128 each; the embedding is the head too."""
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        head_dim=128,
        intermediate_size=mlp,
        vocab_size=vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )


def qwen3_06b() -> Qwen3Config:
    """596 M parameters."""
    return _qwen3(layers=28, hidden=1024, heads=16, keys=8, mlp=3072, vocabulary=151_936)


def served_20m() -> Qwen3Config:
    return _qwen3(layers=8, hidden=384, heads=3, keys=1, mlp=1024, vocabulary=16_384)


def smallest() -> Qwen3Config:
    """For tests."""
    return _qwen3(layers=2, hidden=64, heads=2, keys=1, mlp=128, vocabulary=320)


def shapes_of(config: Qwen3Config) -> Shapes:
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def weights_of(config: Qwen3Config) -> dict[str, torch.Tensor]:
    """bf16, the same in every process."""
    return {name: tensor.bfloat16() for name, tensor in initial(shapes_of(config))}


def save(config: Qwen3Config, folder: Path) -> None:
    """With a tokenizer of as many words as there are rows in the embedding."""
    config.save_pretrained(folder)
    save_file(weights_of(config), folder / "model.safetensors", metadata={"format": "pt"})
    words = {f"t{number}": number for number in range(config.vocab_size)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t2"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="t0", eos_token="t1").save_pretrained(folder)
