"""After twenty deltas a live server is what a server is that was freshly started on the trainer's saved checkpoint."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
import torch

from shared.types import Manifest
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
from trainer_box.publisher import Publisher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), both_dtypes]

LAST = 20
FROZEN, UNCHANGED, SIGNED, UNANNOUNCED, BUSY = range(4, 8), 10, 11, 13, 16  # versions
IN_FLIGHT, LONG = 16, 256  # completions and their tokens
CACHED = [3 + number * 7 % 290 for number in range(600)]  # several of vLLM's blocks
PROMPTS = (list(range(7, 31)), CACHED[:200], [299, 5, 0, 17])
TOLERANCE = {"float32": 0.01, "bfloat16": 0.08}  # of the mean difference of log-probabilities
BEGIN_DEADLINE_S = 60.0

Answer = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Observed:
    """What a server says of its weights. The first answer is to the prompt that was cached."""

    checksums: dict[str, str]
    answers: list[Answer]

    @classmethod
    def of(cls, server: Server) -> "Observed":
        return cls(server.checksums(), [server.complete(prompt, 16) for prompt in (CACHED, *PROMPTS)])


@dataclass(frozen=True)
class Story:
    """`hits` are the tokens of the cached prompt that needed no prefill before and during the sync in mid-flight.

    `lengths` are of the completions that were in flight then, `reprefilled` how many the server counted.
    """

    weights: Weights
    manifests: list[Manifest]
    answers: list[tuple[int, Any]]
    lengths: list[int]
    reprefilled: int
    hits: float
    before: dict[str, Any]
    after: dict[str, Any]
    live: Observed
    fresh: Observed


@pytest.fixture(scope="module")
def story(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    weights, manifests, answers, lengths = random_weights(100, server.tied), [], [], []
    with publisher(server.bucket, f"twenty-{server.dtype}") as out:
        assert server.update(out.publish(weights.items()))[0] == 200
        before, hits = server.status(), server.metric("vllm:prefix_cache_hits_total")
        for version in range(1, LAST + 1):
            weights = _next(weights, version)
            manifests.append(manifest := out.publish(weights.items()))
"""
