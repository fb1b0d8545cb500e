"""What the bucket says of the end of a run."""

import pytest
import torch

from shared import layout
from shared.errors import SyncError
from shared.types import End
from tests.shared.fake_bucket import MemoryBucket
from trainer_box.ending import INTERRUPTED, Ending
from trainer_box.publisher import Publisher

FIRST, SECOND = layout.end("r", 0), layout.end("r", 1)


def publish(bucket: MemoryBucket, value: float) -> None:
    with Publisher(bucket, "r") as publisher:
        publisher.publish([("w", torch.full((4,), value))])


def end_at(bucket: MemoryBucket, path: str) -> End:
    return End.from_json(bucket.stored[path], path)


def end(bucket: MemoryBucket, reason: str = "") -> list[str]:
    """A session that ends so; what it said."""
    lines = list[str]()
    with Ending(bucket, "r", lines.append) as ending:
        ending.reason = reason
    return lines


def test_the_end_is_noted_at_the_newest_version_with_its_reason() -> None:
    bucket = MemoryBucket()
    publish(bucket, 0.0)
    assert end(bucket, INTERRUPTED) == []
    found = end_at(bucket, FIRST)
    assert (found.run_id, found.version, found.reason, found.trainer) == ("r", 0, "it was interrupted", {})


def test_a_run_that_goes_on_has_not_ended_and_its_newer_reason_counts() -> None:
    bucket = MemoryBucket()
    publish(bucket, 0.0)
    end(bucket, INTERRUPTED)
    with Ending(bucket, "r", print):
        assert FIRST not in bucket.stored
    assert end_at(bucket, FIRST).reason == ""
    publish(bucket, 1.0)
    with Ending(bucket, "r", print):
        assert FIRST in bucket.stored
    assert SECOND in bucket.stored


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SyncError("tensor w has NaN;\nlower the learning rate"), "tensor w has NaN; lower the learning rate"),
        (OSError(28, "No space left on device", "/secret"), "the disk or the network of the trainer failed (No space"),
        (KeyboardInterrupt(), "it was interrupted"),
        (ValueError("key hf_abc"), "the trainer failed (ValueError)"),
    ],
)
def test_whatever_is_raised_is_the_reason(error: BaseException, reason: str) -> None:
    bucket, lines = MemoryBucket(), list[str]()
    publish(bucket, 0.0)
    with pytest.raises(type(error)), Ending(bucket, "r", lines.append):
        raise error
    assert end_at(bucket, FIRST).reason.startswith(reason)
    assert "secret" not in end_at(bucket, FIRST).reason
    assert lines == []


def test_a_run_without_a_version_has_nothing_that_could_end() -> None:
    bucket = MemoryBucket()
    assert end(bucket, INTERRUPTED) == []
    assert bucket.stored == {}


def test_a_bucket_that_does_not_take_it_is_told() -> None:
    bucket, lines = MemoryBucket(), list[str]()
    publish(bucket, 0.0)
    with Ending(bucket, "r", lines.append):
        bucket.fail_in = 0
    assert lines[0].startswith("the bucket does not say that training has ended: ")
    assert FIRST not in bucket.stored
