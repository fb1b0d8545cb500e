"""Checkpoints of random weights in a Qwen3's shapes, for vLLM to serve. Needs no download."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config

from tests.bench.steps import HEAD, Qwen3, shapes_of
from tests.bench.trainee import initial


def config_of(size: Qwen3) -> Qwen3Config:
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
        num_hidden_layers=size.layers,
        hidden_size=size.hidden,
        num_attention_heads=size.heads,
        num_key_value_heads=size.keys,
        head_dim=HEAD,
        intermediate_size=size.mlp,
        vocab_size=size.vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )


def weights_of(size: Qwen3) -> dict[str, torch.Tensor]:
    """bf16, the same in every process."""
    return {name: tensor.bfloat16() for name, tensor in initial(shapes_of(size))}


def save(size: Qwen3, folder: Path) -> None:
    """With a tokenizer of as many words as there are rows in the embedding."""
    config_of(size).save_pretrained(folder)
    save_file(weights_of(size), folder / "model.safetensors", metadata={"format": "pt"})
    words = {f"t{number}": number for number in range(size.vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t2"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="t0", eos_token="t1").save_pretrained(folder)
