"""Extra anchors beside the chain, and retention: what a receiver may still need is there, all else goes."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shared import layout
from shared.errors import BucketError
from shared.reader import RunReader
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, copies, model, nudge, same
from tests.trainer_box.publishing import received
from trainer_box import anchors as anchors_module
from trainer_box.publisher import Publisher


@pytest.fixture
def small_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra anchor as soon as the deltas have grown to more than the model, however small that is."""
    monkeypatch.setattr(anchors_module, "LEAST_BYTES", 0)


def publish(publisher: Publisher, weights: Weights, count: int) -> None:
    for seed in range(count):
        nudge(weights, seed, count=30)
        publisher.publish(weights.items())


def data(bucket: MemoryBucket) -> list[str]:
    return sorted(path for path in bucket.stored if path.endswith(".safetensors"))


def anchors(bucket: MemoryBucket) -> list[int]:
    return [layout.version_of(path) or 0 for path in bucket.files("r/anchors")]


@pytest.mark.usefixtures("small_chains")
def test_a_receiver_that_joins_never_fetches_much_more_than_twice_the_model() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    size, largest = publisher.publish(weights.items()).nbytes, 0
    for seed in range(100):
        nudge(weights, seed, count=30)
        largest = max(largest, publisher.publish(weights.items()).nbytes)
        bucket.calls.clear()
        assert same(received(bucket), weights)
        fetched = [path for call in bucket.calls if (path := call.removeprefix("read ")).endswith(".safetensors")]
        assert sum(len(bucket.stored[path]) for path in fetched) <= 2 * size + largest
    assert len(RunReader(bucket, "r").versions()) == 101


@pytest.mark.usefixtures("small_chains")
def test_extra_anchors_do_not_interrupt_the_chain() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    publish(publisher, weights, 100)
    kinds = [manifest.kind for manifest in RunReader(bucket, "r").manifests()]
    assert kinds == ["anchor"] + ["delta"] * 100
    assert len(anchors(bucket)) == 2


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


def test_a_chain_of_many_tiny_deltas_gets_an_extra_anchor_too() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    for _ in range(anchors_module.MOST_DELTAS):
        assert anchors(bucket) == [0]
        publisher.publish(weights.items())
    assert anchors(bucket) == [0, anchors_module.MOST_DELTAS]


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


@pytest.mark.usefixtures("small_chains")
def test_an_extra_anchor_that_fails_costs_nothing_and_is_tried_again() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    real, refused = bucket.write, list[str]()

    def write(path: str, source: Path | bytes, *, replace: bool = False) -> None:
        if "anchor" in path and not refused:
            refused.append(path)
            raise BucketError(f"cannot write {path}")
        real(path, source, replace=replace)

    bucket.write = write  # type: ignore[method-assign]
    publish(publisher, weights, 100)
    assert len(refused) == 1
    assert len(anchors(bucket)) == 2
    assert same(received(bucket), weights)


@pytest.mark.parametrize(("limit", "count"), [(2048, 3), (4096, 2), (6272, 1)])  # the tensors have 4096, 2048, 128
def test_an_anchor_in_shards_is_read_whole_or_not_at_all(limit: int, count: int) -> None:
    bucket, weights = MemoryBucket(), model()
    manifest = Publisher(bucket, "r", shard_bytes=limit).publish(weights.items())
    assert [file.path for file in manifest.files] == [layout.anchor("r", 0, n + 1, count) for n in range(count)]
    assert same(received(bucket), weights)
    held = copies(weights)
    for file in manifest.files:
        content = bucket.stored.pop(file.path)
        with pytest.raises(Exception, match=file.path):
            received(bucket)
        bucket.stored[file.path] = content
    assert same(held, received(bucket))
