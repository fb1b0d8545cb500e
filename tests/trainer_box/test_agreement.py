"""Log-probabilities of a server and of a model, compared token by token."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from shared.errors import SyncError
from tests.trainer_box.fake_space import Answer, FakeSpace, fake_space
from trainer_box.agreement import Completion, compare, sample
from trainer_box.tiny_policy import tiny_policy_path

PROMPTS = [[5, 6, 7], [8, 9]]
TOKENS = [10, 11, 12]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32)


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    monkeypatch.setenv("VLLM_API_KEY", "right")
    with fake_space("tiny", key="right") as server:
        yield server


@torch.no_grad()
def logprobs(model: PreTrainedModel, prompt: list[int], temperature: float) -> list[float]:
    """One token at a time, as a server does."""
    found = []
    for i, token in enumerate(TOKENS):
        logits = model(input_ids=torch.tensor([prompt + TOKENS[:i]])).logits[0, -1].double()
        found.append(float((logits / temperature).log_softmax(-1)[token]))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_server_with_the_same_weights_agrees(model: PreTrainedModel, temperature: float) -> None:
    completions = [Completion(prompt, TOKENS, logprobs(model, prompt, temperature)) for prompt in PROMPTS]
    agreement = compare(model, completions, temperature)
    assert agreement.tokens == 6
    assert agreement.importance_ratio == pytest.approx(1, abs=1e-4)
    assert agreement.max_logprob_difference < 1e-4


def test_a_difference_shows_in_ratio_and_maximum(model: PreTrainedModel) -> None:
    served = logprobs(model, PROMPTS[0], 1.0)
    served[1] -= 0.5
    agreement = compare(model, [Completion(PROMPTS[0], TOKENS, served)], 1.0)
    assert agreement.max_logprob_difference == pytest.approx(0.5, abs=1e-4)
    assert agreement.importance_ratio == pytest.approx((2 + math.exp(0.5)) / 3, abs=1e-4)


def test_the_temperature_is_not_forgotten(model: PreTrainedModel) -> None:
    completions = [Completion(PROMPTS[0], TOKENS, logprobs(model, PROMPTS[0], 1.0))]
    assert compare(model, completions, 0.7).max_logprob_difference > 0.1


def test_samples_are_asked_for_with_the_key_and_as_token_ids(space: FakeSpace) -> None:
    space.complete = lambda body: (TOKENS, [-1.0, -2.0, -3.0])
    completions = sample(space.url, "tiny", PROMPTS, temperature=0.7, max_tokens=3)
    assert completions == [Completion(prompt, TOKENS, [-1.0, -2.0, -3.0]) for prompt in PROMPTS]
    assert [body["prompt"] for body in space.completions] == PROMPTS
    assert all(body["temperature"] == 0.7 and body["return_token_ids"] for body in space.completions)
    assert {body["seed"] for body in space.completions} == {0, 1}


def test_a_server_that_refuses_or_is_gone_is_one_sentence(space: FakeSpace, free_port: Callable[[], int]) -> None:
    space.fixed["/v1/completions"] = Answer(503, {"error": "dirty"})
    with pytest.raises(SyncError, match="answered HTTP 503: .*dirty"):
        sample(space.url, "tiny", PROMPTS, 1.0, 3)
    with pytest.raises(SyncError, match="did not answer: ConnectError"):
        sample(f"http://127.0.0.1:{free_port()}", "tiny", PROMPTS, 1.0, 3)
