"""The tiny Qwen3 that the live servers serve, random weights for it, and what they should lead to.

What is expected comes from transformers, and from vLLM's layout written down by hand; nothing here asks a server.
"""

import hashlib
from collections import defaultdict
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

Weights = dict[str, torch.Tensor]

VOCABULARY = 300  # vLLM pads it to PADDED
POSITIONS = 2048
PADDED = 320

# The layers that vLLM fuses, in the order in which they lie in the fused one.
_FUSED = {
    **dict.fromkeys(["q_proj", "k_proj", "v_proj"], "qkv_proj"),
    **dict.fromkeys(["gate_proj", "up_proj"], "gate_up_proj"),
}


def make_model(tied: bool = True) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).to(torch.bfloat16).eval()


def with_weights(weights: Weights) -> Qwen3ForCausalLM:
    """A model with an untied head is recognised by its weight."""
    model = make_model(tied="lm_head.weight" not in weights)
    model.load_state_dict(weights, strict=False)
    return model


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """With a tokenizer, as a server needs it."""
    model.save_pretrained(folder)
    words = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t2"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="t0", eos_token="t1").save_pretrained(folder)


def base_weights(tied: bool) -> Weights:
    """Those that a server is started with."""
    return {name: parameter.detach() for name, parameter in make_model(tied).named_parameters()}


@torch.no_grad()
def random_weights(seed: int, tied: bool) -> Weights:
    """Far from the base model, and spread enough that log-probabilities differ clearly."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (parameter.float() + 0.2 * torch.randn(parameter.shape, generator=generator)).to(torch.bfloat16)
        for name, parameter in make_model(tied).named_parameters()
    }


def partly_changed(weights: Weights, seed: int, frozen: int = 0) -> Weights:
    """A tenth of the elements anew, of every tensor but the first `frozen` ones."""
    generator = torch.Generator().manual_seed(seed)
    other = random_weights(seed, tied="lm_head.weight" not in weights)
    changed = {}
    for number, (name, tensor) in enumerate(weights.items()):
        mask = torch.rand(tensor.shape, generator=generator) < 0.1
        changed[name] = torch.where(mask, other[name], tensor) if number >= frozen else tensor
    return changed


def log_probabilities(weights: Weights, dtype: str, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Transformers' log-probabilities of `tokens` after the prompt."""
    model = with_weights(weights).to(getattr(torch, dtype))
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0].float()
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    found: torch.Tensor = rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return found


def greedy(weights: Weights, prompt: list[int], tokens: int) -> list[int]:
    """The likeliest answer, computed in float32."""
    model, answer = with_weights(weights).float(), list(prompt)
    with torch.no_grad():
        for _ in range(tokens):
            answer.append(int(model(torch.tensor([answer])).logits[0, -1].argmax()))
    return answer[len(prompt) :]


def regret(weights: Weights, prompt: list[int], tokens: list[int]) -> float:
    """How much less likely a token is than the likeliest in its place, at most: about 0 for a greedy answer."""
    with torch.no_grad():
        logits = with_weights(weights).float()(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return float((logits.max(1).values - chosen).max())


def live_checksums(weights: Weights, dtype: str) -> dict[str, str]:
    """What vLLM's checksums have to be: sha256 of each live parameter's bytes."""
    parts: dict[str, list[torch.Tensor]] = defaultdict(list)
    for name, tensor in weights.items():
        *path, layer, kind = name.split(".")
        parts[".".join([*path, _FUSED.get(layer, layer), kind])].append(tensor.to(getattr(torch, dtype)))
    return {name: _sha256(torch.cat(tensors)) for name, tensors in parts.items()}


def _sha256(tensor: torch.Tensor) -> str:
    rows = (
        [tensor, tensor.new_zeros(PADDED - VOCABULARY, *tensor.shape[1:])] if len(tensor) == VOCABULARY else [tensor]
    )
    return hashlib.sha256(torch.cat(rows).view(torch.uint8).numpy().tobytes()).hexdigest()
