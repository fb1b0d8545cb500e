"""What tests of the publisher know of it: which of its calls write, and what a receiver has of its versions."""

from shared.follower import Follower
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights

DATA, MANIFEST, POINTER = 1, 3, 5  # the calls of a publish that write; the others look for another publisher


def received(bucket: MemoryBucket, run_id: str = "r") -> Weights:
    weights: Weights = {}
    Follower(bucket, run_id).catch_up(weights)
    return weights
