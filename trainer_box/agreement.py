"""Whether the served policy is the trained one: log-probabilities of the same tokens from vLLM and from transformers.

Knows an HTTP completion endpoint and a model in memory; where the weights come from is the caller's affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import torch
from transformers import PreTrainedModel

from shared.errors import SyncError
from trainer_box.headers import vllm_headers


@dataclass(frozen=True)
class Agreement:
    """Over the tokens sampled by the server: mean of p_model / p_server, largest |log p_model - log p_server|."""

    tokens: int
    importance_ratio: float
    max_logprob_difference: float


@dataclass(frozen=True)
class Completion:
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


def sample(
    url: str, model: str, prompts: Sequence[list[int]], temperature: float, max_tokens: int
) -> list[Completion]:
    """One completion per prompt of token ids. Raises SyncError when the server does not answer."""
    completions = []
    with httpx.Client(base_url=url, headers=vllm_headers(url), timeout=120, trust_env=False) as client:
        for seed, prompt in enumerate(prompts):
            request = {
                "model": model,
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": temperature,
                "logprobs": 0,
                "return_token_ids": True,
                "seed": seed,
            }
            try:
                response = client.post("/v1/completions", json=request)
            except httpx.HTTPError as error:
                raise SyncError(f"vLLM at {url} did not answer: {error!r}") from error
            if response.status_code != 200:
                raise SyncError(f"vLLM at {url} answered HTTP {response.status_code}: {response.text[:300]}")
            choice = response.json()["choices"][0]
            completions.append(Completion(prompt, choice["token_ids"], choice["logprobs"]["token_logprobs"]))
    return completions


@torch.no_grad()
def compare(model: PreTrainedModel, completions: Sequence[Completion], temperature: float) -> Agreement:
    """Score the server's tokens with `model`, whose logits are divided by `temperature` as GRPO does."""
    differences = []
    for completion in completions:
        ids = torch.tensor([completion.prompt + completion.tokens])
        logits = model(input_ids=ids).logits[0, len(completion.prompt) - 1 : -1].float() / temperature
        scored = logits.log_softmax(-1).gather(1, torch.tensor(completion.tokens).unsqueeze(1)).squeeze(1)
        differences.append(scored - torch.tensor(completion.logprobs))
    all_differences = torch.cat(differences)
    return Agreement(
        tokens=all_differences.numel(),
        importance_ratio=float(all_differences.exp().mean()),
        max_logprob_difference=float(all_differences.abs().max()),
    )
