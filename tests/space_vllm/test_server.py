"""A real vLLM server on the CPU follows published weights, refuses bad updates, and serves on meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.space_vllm.conftest import VOCABULARY, Server, make_model
from tests.space_vllm.fakes import publisher

pytestmark = pytest.mark.slow

PROMPT = list(range(7, 31))
# Mean difference of log-probabilities. Another version's are more than ten times as far away.
TOLERANCE = {"float32": 0.01, "bfloat16": 0.08}

both_dtypes = pytest.mark.parametrize("server", ["float32", "bfloat16"], indirect=True)
in_float32 = pytest.mark.parametrize("server", ["float32"], indirect=True)
Weights = dict[str, torch.Tensor]


def random_weights(seed: int) -> Weights:
    """Far from the base model, and spread enough that log-probabilities differ clearly."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (parameter.float() + 0.2 * torch.randn(parameter.shape, generator=generator)).to(torch.bfloat16)
        for name, parameter in make_model().named_parameters()
    }


def partly_changed(weights: Weights, seed: int) -> Weights:
    """A tenth of the elements of every tensor anew."""
    generator = torch.Generator().manual_seed(seed)
    other = random_weights(seed)
    masks = {name: torch.rand(tensor.shape, generator=generator) < 0.1 for name, tensor in weights.items()}
    return {name: torch.where(masks[name], other[name], tensor) for name, tensor in weights.items()}


def reference(weights: Weights, dtype: str, tokens: list[int]) -> torch.Tensor:
    """Transformers' log-probabilities of `tokens` after the prompt."""
    model = make_model()
    model.load_state_dict(weights, strict=False)
    model.to(getattr(torch, dtype))
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + tokens])).logits[0].float()
    rows = logits[len(PROMPT) - 1 : -1].log_softmax(-1)
    found: torch.Tensor = rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return found


def distance(server: Server, weights: Weights) -> float:
    """How far the server's log-probabilities of its own answer are from those of `weights`."""
    tokens, found = server.complete(PROMPT, 16)
    return float((torch.tensor(found) - reference(weights, server.dtype, tokens)).abs().mean())


@both_dtypes
def test_logits_follow_the_published_weights(server: Server) -> None:
    versions = [random_weights(1)]
    for seed in range(2, 5):
        versions.append(partly_changed(versions[-1], seed))
    with publisher(server.bucket, f"logits-{server.dtype}") as out:
        published = [out.publish(weights.items()) for weights in versions]
    assert [manifest.kind for manifest in published] == ["anchor", "delta", "delta", "delta"]
    for index in (0, 1, 3):
        status, answer = server.update(published[index])
        assert (status, answer["version"]) == (200, index), answer
        tolerance = TOLERANCE[server.dtype]
        assert distance(server, versions[index]) < tolerance
        assert distance(server, versions[index - 1]) > 10 * tolerance
    status, answer = server.call("/weights/status")
    assert (answer["version"], answer["fingerprint"]) == (3, published[3].fingerprint)
    assert (answer["dtype"], answer["logprobs_mode"]) == (server.dtype, "processed_logprobs")
    assert answer["served_model_names"] == ["tiny"]


@in_float32
def test_refused_updates_leave_the_old_weights_served_and_the_next_good_one_goes_through(server: Server) -> None:
    old, new = random_weights(11), random_weights(12)
    with publisher(server.bucket, "refusals") as out:
        server.update(out.publish(old.items()))
        delta = out.publish(partly_changed(old, 13).items())
    _, before = server.call("/weights/checksums")
    refusals: dict[str, tuple[int, Callable[[], tuple[int, Any]]]] = {
        "no key": (401, lambda: server.update(delta, key="")),
        "foreign bucket": (403, lambda: server.update(delta, repo_id="someone/else")),
        "unknown run": (409, lambda: server.update(delta, run_id="no-such-run")),
        "unknown version": (409, lambda: server.update(delta, version=7)),
        "unknown file": (409, lambda: server.update(delta, filename="refusals/deltas/step_000007.safetensors")),
        "damaged file": (409, lambda: server.update(delta)),
    }
    file = server.bucket / delta.path
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    assert {name: call()[0] for name, (_, call) in refusals.items()} == {k: v[0] for k, v in refusals.items()}
    assert server.call("/weights/checksums")[1] == before
    assert distance(server, old) < TOLERANCE["float32"]
    with publisher(server.bucket, "refusals") as out:
        assert server.update(out.publish(new.items()))[0] == 200
    assert distance(server, new) < TOLERANCE["float32"]


@in_float32
def test_a_request_in_flight_goes_on_across_a_sync(server: Server) -> None:
    with publisher(server.bucket, "in-flight") as out:
        weights = random_weights(21)
        server.update(out.publish(weights.items()))
        manifest = out.publish(partly_changed(weights, 22).items())
    stream = server.stream(PROMPT, 950)
    tokens = next(stream)
    assert server.update(manifest)[0] == 200
    for more in stream:
        tokens += more
    assert len(tokens) == 950
    assert all(0 <= token < VOCABULARY for token in tokens)
    assert server.call("/weights/status")[1]["last_sync"]["reprefilled"] == 1


@in_float32
def test_vllms_own_routes_are_closed_except_the_openai_api(server: Server) -> None:
    paths = ("/docs", "/invocations", "/tokenize", "/inference/v1/generate", "/pause", "/collective_rpc", "/ping")
    assert {path: server.call(path)[0] for path in paths} == dict.fromkeys(paths, 404)
    assert server.call("/v1/models", key="wrong")[0] == 401
    assert server.call("/v1/models")[1]["data"][0]["id"] == "tiny"
