"""One writer per run where no lock reaches: by epochs in the pointer, whatever comes in late or at the same moment."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared import layout
from shared.errors import FencedError, SyncError
from shared.reader import RunReader
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, copies, model, nudge, same
from tests.trainer_box.publishing import received
from trainer_box.publisher import Publisher
from trainer_box.writer import OvertakenError


@dataclass
class InterruptedBucket(MemoryBucket):
    """Calls `meanwhile` once, after the first file whose path starts with `after` has been written."""

    after: str = ""
    meanwhile: Callable[[], None] | None = None

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        super().write(path, source, replace=replace)
        if self.meanwhile is not None and path.startswith(self.after):
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()


def test_whoever_opens_a_run_elsewhere_fences_the_one_before_even_before_it_publishes() -> None:
    bucket = MemoryBucket()
    first, weights = Publisher(bucket, "r"), model()
    whole = first.publish(weights.items())
    second = Publisher(bucket, "r")
    with pytest.raises(FencedError, match="another publisher: version 0 is of writer epoch 2, this one has 1"):
        first.publish(weights.items())
    with pytest.raises(SyncError, match="closed"):
        first.publish(weights.items())
    first.close()
    assert RunReader(bucket, "r").newest() == whole
    nudge(weights, 1)
    assert second.publish(weights.items()).version == 1
    assert same(received(bucket), weights)


@pytest.mark.parametrize("after", ["r/deltas", "r/manifests", "r/latest"])
def test_a_takeover_in_the_middle_of_a_publish_leaves_one_writer_and_whole_versions(after: str) -> None:
    bucket = InterruptedBucket()
    first, weights = Publisher(bucket, "r"), model()
    first.publish(weights.items())
    nudge(weights, 1)
    bucket.after, opened = after, list[Publisher]()
    bucket.meanwhile = lambda: opened.append(Publisher(bucket, "r"))
    try:
        first.publish(weights.items())
    except FencedError:
        assert after != "r/latest"
    with pytest.raises(SyncError):
        first.publish(weights.items())
    (second,) = opened
    theirs = copies(weights)
    nudge(theirs, 2)
    manifest = second.publish(theirs.items())
    assert manifest.writer_epoch == 2
    assert RunReader(bucket, "r").newest() == manifest
    assert same(received(bucket), theirs)


def opened_over(bucket: MemoryBucket, after: int = -1) -> Publisher:
    """A publisher whose claim is written over at once, by a write of the one before that came in late."""
    pointer = bucket.stored.get(layout.pointer("r"))
    publisher = Publisher(bucket, "r", after=after)
    if pointer is not None:
        bucket.stored[layout.pointer("r")] = pointer
    return publisher


def test_a_pointer_that_comes_in_late_does_not_stop_the_one_that_opened_last() -> None:
    bucket = MemoryBucket()
    first, weights = Publisher(bucket, "r"), model()
    first.publish(weights.items())
    second = opened_over(bucket)
    assert second.adopt(weights.items()) is not None
    nudge(weights, 1)
    manifest = second.publish(weights.items())
    assert (manifest.version, manifest.kind, manifest.writer_epoch) == (1, "delta", 2)
    with pytest.raises(FencedError):
        first.publish(weights.items())
    assert same(received(bucket), weights)


def test_versions_written_past_a_claim_stand_and_the_claimant_goes_on_after_them_with_an_anchor() -> None:
    bucket = MemoryBucket()
    first, weights = Publisher(bucket, "r"), model()
    first.publish(weights.items())
    second, theirs = opened_over(bucket), copies(weights)
    assert second.adopt(theirs.items()) is not None
    for seed in (1, 2):
        nudge(weights, seed)
        first.publish(weights.items())
    nudge(theirs, 3)
    with pytest.raises(OvertakenError, match="version 2 of run 'r' is by a publisher that this one"):
        second.publish(theirs.items())
    assert same(received(bucket), weights)
    assert second.next_version == 3
    with pytest.raises(FencedError):
        first.publish(weights.items())
    manifest = second.publish(theirs.items())
    assert (manifest.version, manifest.kind, manifest.writer_epoch) == (3, "anchor", 2)
    assert same(received(bucket), theirs)


@pytest.mark.parametrize("after", ["r/deltas", "r/manifests"])
def test_a_pointer_that_comes_in_during_a_publish_neither_stops_it_for_good_nor_is_moved_back(after: str) -> None:
    bucket = InterruptedBucket()
    first, weights = Publisher(bucket, "r"), model()
    first.publish(weights.items())
    second, theirs = opened_over(bucket), copies(weights)
    assert second.adopt(theirs.items()) is not None
    bucket.after, bucket.meanwhile = after, lambda: late(bucket, first, weights, 9)
    nudge(theirs, 1)
    with pytest.raises(OvertakenError):
        second.publish(theirs.items())
    settled = second.settle()
    assert (settled is not None) == (after == "r/manifests")
    assert json.loads(bucket.stored[layout.pointer("r")])["version"] == 9
    nudge(theirs, 2)
    manifest = second.publish(theirs.items())
    assert (manifest.version, manifest.kind) == (10, "anchor")
    assert same(received(bucket), theirs)


def late(bucket: MemoryBucket, publisher: Publisher, weights: Weights, version: int) -> None:
    """The publisher looked at the pointer before somebody claimed the run, and writes afterwards."""
    claim = json.loads(bucket.stored[layout.pointer("r")])["writer_epoch"]
    bucket.edit(layout.pointer("r"), writer_epoch=claim - 1)
    publisher.publish(weights.items(), version=version)


def test_of_two_publishers_that_both_began_the_run_the_one_that_opened_last_goes_on() -> None:
    bucket = MemoryBucket()
    first, second = Publisher(bucket, "r"), Publisher(bucket, "r")
    first.publish(model().items())
    with pytest.raises(OvertakenError):
        second.publish(model().items())
    with pytest.raises(FencedError, match="being written by another publisher"):
        first.publish(model().items())
    assert second.publish(model().items()).version == 1


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_of_two_publishers_with_equal_epochs_one_goes_on(is_begun: bool, number: int) -> None:
    bucket = MemoryBucket()
    with Publisher(bucket, "r") as before:
        if is_begun:
            before.publish(model().items())
    one, other = opened_over(bucket, after=0), opened_over(bucket, after=0)
    assert one._writer.epoch == other._writer.epoch == 2
    weights = model(1)
    one.publish(weights.items(), version=2)
    with pytest.raises(FencedError, match="another publisher: version 2 is of writer epoch 2, this one has 2"):
        other.publish(model(2).items(), version=number)
    one.publish(weights.items())
    assert same(received(bucket), weights)


def test_the_pointer_tells_the_epoch_of_whoever_may_write() -> None:
    bucket = MemoryBucket()
    Publisher(bucket, "r").publish(model().items())
    for epoch in (2, 3):
        Publisher(bucket, "r")
        assert json.loads(bucket.stored[layout.pointer("r")])["writer_epoch"] == epoch
    assert RunReader(bucket, "r").newest().writer_epoch == 1


def test_a_pointer_of_a_run_whose_manifests_are_all_lost_is_claimed_too() -> None:
    bucket = MemoryBucket()
    first = Publisher(bucket, "r")
    first.publish(model().items(), version=7)
    del bucket.stored[layout.manifest("r", 7)]
    second = Publisher(bucket, "r")
    with pytest.raises(FencedError):
        first.publish(model().items())
    assert second.publish(model().items()).version == 8
    assert same(received(bucket), model())
