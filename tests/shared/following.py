"""A run to follow, what each of its versions holds, and what a receiver that refuses leaves behind."""

import pytest

from shared.errors import SyncError
from shared.follower import Follower
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, copies, model, nudge, same
from trainer_box.publisher import Publisher

History = list[Weights]


def publish(bucket: MemoryBucket, run_id: str = "r", versions: int = 4) -> History:
    """An anchor and deltas on it; what each version holds."""
    history, weights = [], model()
    with Publisher(bucket, run_id) as publisher:
        for seed in range(versions):
            publisher.publish(weights.items())
            history.append(copies(weights))
            nudge(weights, seed)
    return history


def refused(
    bucket: MemoryBucket, weights: Weights, kind: type[SyncError], match: str = ".", run_id: str | None = "r"
) -> None:
    """catch_up raises, and leaves the dict, its tensors and their bits as they were."""
    before, objects = copies(weights), dict(weights)
    with pytest.raises(kind, match=match) as caught:
        Follower(bucket, run_id).catch_up(weights)
    assert same(weights, before)
    assert all(weights[name] is tensor for name, tensor in objects.items())
    assert "\n" not in str(caught.value)
