"""After twenty deltas a live server is what a server is that was freshly started on the trainer's saved checkpoint."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from shared.types import Manifest
from tests.shared.decoder import digests, read_file, rebuild
from tests.space_vllm.fakes import publisher
from tests.space_vllm.live_server import Server, both_dtypes, serving
from tests.space_vllm.tiny import (
    Weights,
    live_checksums,
    log_probabilities,
    partly_changed,
    random_weights,
    save,
    with_weights,
)

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600), both_dtypes]

LAST = 20  # the version that is published while completions are in flight
FROZEN, UNCHANGED, SIGNED, UNANNOUNCED = range(4, 8), 10, 12, 14  # other versions
IN_FLIGHT, LONG = 16, 1600  # completions and their tokens: much longer than a sync takes
CACHED = [3 + number * 7 % 290 for number in range(400)]  # several of vLLM's blocks
PROMPTS = (CACHED, CACHED[:200], list(range(7, 31)), [299, 5, 0, 17])
TOLERANCE = {"float32": 0.01, "bfloat16": 0.08}  # of the mean difference of log-probabilities
BEGIN_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Observed:
    """What a server says of its weights: checksums, and tokens with their log-probabilities for each prompt."""

    checksums: dict[str, str]
    answers: list[tuple[list[int], list[float]]]

    @classmethod
    def of(cls, server: Server) -> "Observed":
        return cls(server.checksums(), [server.complete(prompt, 16) for prompt in PROMPTS])


@dataclass
class Story:
    """`before` and `after` are statuses, `lengths` those of the completions in flight through the last sync.

    `hits` tells how many tokens of them came from the prefix cache before that sync.
    """

    weights: Weights
    checkpoint: Path
    manifests: list[Manifest] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    hits: float = 0.0
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    live: Observed | None = None
    fresh: Observed | None = None


@pytest.fixture(scope="module")
def story(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Story:
    found = Story(random_weights(100, server.tied), tmp_path_factory.mktemp("checkpoint"))
    with publisher(server.bucket, f"twenty-{server.dtype}") as out:
        assert server.update(out.publish(found.weights.items()))[0] == 200
        found.before = server.status()
        for version in range(1, LAST + 1):
            found.weights = next_weights(found.weights, version)
            found.manifests.append(out.publish(found.weights.items()))
            if version not in (UNANNOUNCED, LAST):
                found.answers.append(server.update(found.manifests[-1]))
    update_in_mid_flight(server, found)
    found.live = Observed.of(server)
    before = found.before["counters"]["recounts"]
    found.after = server.wait_until(lambda now: now["counters"]["recounts"] > before, "one more recount")
    save(with_weights(found.weights), found.checkpoint)
    with serving(tmp_path_factory.mktemp("fresh"), found.checkpoint, server.dtype, server.tied) as fresh:
        found.fresh = Observed.of(fresh)
    return found


def next_weights(weights: Weights, version: int) -> Weights:
    if version == UNCHANGED:
        return weights
    if version == SIGNED:  # some become -0.0, and positive again one version later
        return {name: torch.where(tensor > 0.5, torch.tensor(-0.0), tensor) for name, tensor in weights.items()}
    if version == SIGNED + 1:
        return {name: torch.where(tensor == 0, torch.tensor(0.0), tensor) for name, tensor in weights.items()}
    return partly_changed(weights, 100 + version, frozen=len(weights) // 2 if version in FROZEN else 0)


def update_in_mid_flight(server: Server, story: Story) -> None:
    """The first of the completions has a prompt whose blocks are cached already."""
    begun, hits = Barrier(IN_FLIGHT + 1), server.metric("vllm:prefix_cache_hits_total")

    def client(prompt: list[int]) -> int:
        stream = server.stream(prompt, LONG)
        tokens = next(stream)
        begun.wait(BEGIN_DEADLINE_S)
        return len(tokens) + sum(len(more) for more in stream)

    server.complete(CACHED, 1)
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        prompts = [CACHED, *([number, *PROMPTS[2]] for number in range(IN_FLIGHT - 1))]
        work = [pool.submit(client, prompt) for prompt in prompts]
        begun.wait(BEGIN_DEADLINE_S)
        story.hits = server.metric("vllm:prefix_cache_hits_total") - hits
        story.answers.append(server.update(story.manifests[-1]))
        story.lengths = [task.result() for task in work]


def test_the_checksums_are_those_of_the_fresh_server(server: Server, story: Story) -> None:
    assert story.live is not None and story.fresh is not None
    assert story.live.checksums == story.fresh.checksums
    assert story.fresh.checksums == live_checksums(story.weights, server.dtype)


def test_the_bucket_alone_leads_to_the_checkpoint_of_the_trainer(server: Server, story: Story) -> None:
    """By a decoder that knows nothing but FORMAT.md."""
    rebuilt = digests(rebuild(server.bucket, story.manifests[-1].run_id, LAST))
    assert rebuilt == digests(read_file(story.checkpoint / "model.safetensors")[1])


def test_each_announced_version_was_live_when_its_update_was_answered(story: Story) -> None:
    assert {manifest.kind for manifest in story.manifests} == {"delta"}
    assert [manifest.version for manifest in story.manifests if not manifest.changed] == [UNCHANGED]
    announced = [version for version in range(1, LAST + 1) if version != UNANNOUNCED]
    assert [(status, answer.get("version")) for status, answer in story.answers] == [(200, v) for v in announced]
    before, after = story.before["counters"], story.after["counters"]
    assert (after["syncs"] - before["syncs"], after["failed"] - before["failed"]) == (LAST, 0)


def test_every_tensor_was_written_in_place_and_recounts_went_on(story: Story) -> None:
    assert story.after["tensors"] == {"in_place": len(story.weights), "reloaded": 0}
    assert story.after["fingerprint"] == story.manifests[-1].fingerprint
    assert story.after["state"] == "serving"


def test_log_probabilities_are_those_of_transformers_on_the_same_weights(server: Server, story: Story) -> None:
    assert story.live is not None
    for prompt, (tokens, found) in zip(PROMPTS, story.live.answers, strict=True):
        expected = log_probabilities(story.weights, server.dtype, prompt, tokens)
        assert float((torch.tensor(found) - expected).abs().mean()) < TOLERANCE[server.dtype]


def test_prompts_cached_before_the_last_sync_are_answered_as_by_the_fresh_server(story: Story) -> None:
    assert story.live is not None and story.fresh is not None
    assert story.hits >= len(CACHED) // 2
    assert story.live.answers == story.fresh.answers


def test_completions_in_flight_through_a_sync_reach_their_full_length(story: Story) -> None:
    assert story.after["last_sync"]["reprefilled"] == IN_FLIGHT
    assert story.lengths == [LONG] * IN_FLIGHT
