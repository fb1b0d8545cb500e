"""What the bucket says of the end of a run."""

import torch

from shared import layout
from shared.types import End
from tests.shared.fake_bucket import MemoryBucket
from trainer_box.ending import note_end
from trainer_box.publisher import Publisher

FIRST, SECOND = layout.end("r", 0), layout.end("r", 1)


def publish(bucket: MemoryBucket, value: float) -> None:
    with Publisher(bucket, "r") as publisher:
        publisher.publish([("w", torch.full((4,), value))])


def end_at(bucket: MemoryBucket, path: str) -> End:
    return End.from_json(bucket.stored[path], path)


def test_the_end_is_noted_at_the_newest_version_with_its_reason() -> None:
    bucket, lines = MemoryBucket(), list[str]()
    publish(bucket, 0.0)
    note_end(bucket, "r", "it was interrupted", None, lines.append)
    end = end_at(bucket, FIRST)
    assert (end.run_id, end.version, end.reason, end.trainer) == ("r", 0, "it was interrupted", {})
    assert lines == []


def test_a_run_that_went_on_ends_again_and_what_was_noted_stays() -> None:
    bucket, lines = MemoryBucket(), list[str]()
    publish(bucket, 0.0)
    note_end(bucket, "r", "it was interrupted", None, lines.append)
    note_end(bucket, "r", "again without a new version", None, lines.append)
    publish(bucket, 1.0)
    note_end(bucket, "r", "", None, lines.append)
    assert end_at(bucket, FIRST).reason == "it was interrupted"
    assert end_at(bucket, SECOND).reason == ""
    assert lines == []


def test_a_bucket_that_does_not_take_it_is_told() -> None:
    lines = list[str]()
    note_end(MemoryBucket(fail_in=0), "r", "", None, lines.append)
    assert lines == ["the bucket does not say that training has ended: cannot read r/latest.json"]
