"""Retention: what a receiver may still need is there, all else goes, whether it ever was whole or not."""

from dataclasses import dataclass, field

import pytest
import torch

from shared import layout
from shared.errors import BucketError
from shared.follower import Follower
from shared.reader import RunReader
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import model, nudge, same
from tests.trainer_box.publishing import RefusingBucket, anchors, data, publish, received
from trainer_box.publisher import Publisher


@pytest.mark.usefixtures("small_chains")
def test_the_bucket_does_not_grow_beyond_two_chains() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    size = publisher.publish(weights.items()).nbytes
    sizes = []
    for _ in range(20):
        publish(publisher, weights, 20)
        sizes.append(sum(len(bucket.stored[path]) for path in data(bucket)))
    assert max(sizes) <= 6 * size
    assert len(RunReader(bucket, "r").versions()) == 401, "manifests stay"


def test_data_of_the_current_and_the_previous_chain_is_kept() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    for _ in range(4):
        publisher.rebase()
        publisher.publish(weights.items())
        publish(publisher, weights, 2)
    assert data(bucket) == [
        "r/anchors/step_000006.safetensors",
        "r/anchors/step_000009.safetensors",
        "r/deltas/step_000007.safetensors",
        "r/deltas/step_000008.safetensors",
        "r/deltas/step_000010.safetensors",
        "r/deltas/step_000011.safetensors",
    ]


def test_an_anchor_that_never_became_whole_counts_for_nothing_and_is_deleted_when_it_is_old() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    publish(publisher, weights, 1)
    publisher.rebase()
    bucket.fail_in = 3  # its manifest
    with pytest.raises(BucketError):
        publisher.publish(weights.items())
    for _ in range(2):
        publisher.rebase()
        publisher.publish(weights.items())
    assert anchors(bucket) == [3, 4]


@dataclass
class RecordingBucket(MemoryBucket):
    """Keeps what the pointer said at each deletion; refuses deletions while `refuses`."""

    pointed: list[bytes] = field(default_factory=list)
    refuses: bool = False

    def delete(self, paths: object) -> None:
        if self.refuses:
            raise BucketError("cannot delete")
        self.pointed.append(self.stored[layout.pointer("r")])
        super().delete(paths)  # type: ignore[arg-type]


def test_old_data_is_deleted_after_the_pointer_moved_and_refusals_are_made_up_for() -> None:
    bucket = RecordingBucket(refuses=True)
    publisher, weights = Publisher(bucket, "r"), model()
    for version in range(6):
        bucket.refuses = version < 5
        if bucket.refuses:  # what is left to do is done after a delta, too
            publisher.rebase()
        publisher.publish(weights.items())
        assert len(anchors(bucket)) == (version + 1 if version < 5 else 2)
    assert [b'"version": 5' in pointer for pointer in bucket.pointed] == [True]


def test_a_publisher_that_was_fenced_deletes_nothing() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    for _ in range(2):
        publisher.rebase()
        publisher.publish(weights.items())
    publisher.commit(publisher.diff(weights.items()))
    publisher.rebase()
    publisher.commit(publisher.diff(weights.items()))
    work = publisher.housekeeping()
    Publisher(bucket, "r")
    before = data(bucket)
    assert work is not None
    work()
    assert data(bucket) == before


@pytest.mark.usefixtures("chains_of_5")
def test_an_anchor_that_lost_a_file_does_not_make_an_older_one_superfluous() -> None:
    bucket, held = MemoryBucket(), dict[str, torch.Tensor]()
    publisher, weights = Publisher(bucket, "r", shard_bytes=4096), model()
    for version in range(11):
        nudge(weights, version)
        publisher.publish(weights.items())
        if version == 4:
            Follower(bucket, "r").catch_up(held)
        if version in (5, 10):
            assert set(anchors(bucket)) == {0, 5, version}
            del bucket.stored[layout.anchor("r", version, 2, 2)]
    assert Follower(bucket, "r").catch_up(held).version == 10
    assert same(held, weights)


def test_while_a_bucket_refuses_manifests_only_the_last_data_stays_in_it() -> None:
    bucket = RefusingBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    for is_begun in (False, True):
        bucket.refused = "/manifests/"
        for seed in range(5):
            nudge(weights, seed)
            with pytest.raises(BucketError):
                publisher.commit(publisher.diff(weights.items()))
            assert publisher.settle() is None
            work = publisher.housekeeping()
            assert work is not None
            work()
            assert len(data(bucket)) == 1 + is_begun
        bucket.refused = "nothing"
        publisher.publish(weights.items())
        assert same(received(bucket), weights)
        publisher.rebase()


def test_data_of_a_version_whose_manifest_is_damaged_or_listed_late_is_kept() -> None:
    bucket = RefusingBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    publish(publisher, weights, 3)
    bucket.stored[layout.manifest("r", 1)] = b"{"
    listed, before = bucket.files, data(bucket)
    bucket.files = lambda folder: [path for path in listed(folder) if "2.json" not in path]  # type: ignore[method-assign]
    bucket.refused = "/deltas/"
    with pytest.raises(BucketError):
        publisher.publish(weights.items())
    work = publisher.housekeeping()
    assert work is not None
    work()
    assert data(bucket) == before
