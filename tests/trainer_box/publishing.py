"""What tests of the publisher know of it: which of its calls write, what it keeps, what a receiver has of it."""

from dataclasses import dataclass, field
from pathlib import Path

from shared import layout
from shared.errors import BucketError
from shared.follower import Follower
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, nudge
from trainer_box.publisher import Publisher

DATA, MANIFEST, POINTER = 1, 3, 5  # the calls of a publish that write; the others look for another publisher


def received(bucket: MemoryBucket, run_id: str = "r") -> Weights:
    weights: Weights = {}
    Follower(bucket, run_id).catch_up(weights)
    return weights


def publish(publisher: Publisher, weights: Weights, count: int) -> None:
    for seed in range(count):
        nudge(weights, seed, count=30)
        publisher.publish(weights.items())


def data(bucket: MemoryBucket) -> list[str]:
    return sorted(path for path in bucket.stored if path.endswith(".safetensors"))


def anchors(bucket: MemoryBucket) -> list[int]:
    return [layout.version_of(path) or 0 for path in bucket.files("r/anchors")]


@dataclass
class RefusingBucket(MemoryBucket):
    """Refuses to write paths that contain `refused`, and records them."""

    refused: str = "nothing"
    asked: list[int | None] = field(default_factory=list)

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        if self.refused in path:
            self.asked.append(layout.version_of(path))
            raise BucketError(f"cannot write {path}")
        super().write(path, source, replace=replace)
