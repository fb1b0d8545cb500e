"""Extra anchors beside the chain: when one is due, also after a resume, and what becomes of one that fails."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared import layout
from shared.reader import RunReader
from shared.types import Base
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import copies, model, nudge, same
from tests.trainer_box.publishing import RefusingBucket, anchors, publish, received
from trainer_box import anchors as anchors_module
from trainer_box.encode import Files, encode_anchor
from trainer_box.publisher import Publisher


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


def test_a_chain_of_many_tiny_deltas_gets_an_extra_anchor_too() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    for _ in range(anchors_module.MOST_DELTAS):
        assert anchors(bucket) == [0]
        publisher.publish(weights.items())
    assert anchors(bucket) == [0, anchors_module.MOST_DELTAS]


@pytest.mark.usefixtures("chains_of_5")
def test_an_extra_anchor_that_fails_costs_nothing_and_is_tried_again_after_a_pause_that_doubles() -> None:
    bucket = RefusingBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    bucket.refused = "anchor"
    publish(publisher, weights, 20)
    assert bucket.asked == [5, 6, 8, 12, 20]
    bucket.refused = "nothing"
    publish(publisher, weights, 16)
    assert anchors(bucket) == [0, 36]
    assert same(received(bucket), weights)
    bucket.refused = "anchor"
    publish(publisher, weights, 6)
    assert bucket.asked[5:] == [41, 42], "after an anchor the pause starts anew"


@pytest.mark.usefixtures("chains_of_5")
def test_an_extra_anchor_takes_only_the_deltas_that_are_in_it_off_the_chain() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    for seed in range(5):
        nudge(weights, seed)
        publisher.commit(publisher.diff(weights.items()))
    work = publisher.housekeeping()
    assert work is not None
    for seed in range(3):
        nudge(weights, seed)
        publisher.commit(publisher.diff(weights.items()))
    work()
    publish(publisher, weights, 2)
    assert anchors(bucket) == [5, 10]


@pytest.mark.usefixtures("chains_of_5")
def test_the_weights_of_an_extra_anchor_stay_as_they_are_until_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, begun, committed = MemoryBucket(), threading.Event(), threading.Event()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    for seed in range(5):
        nudge(weights, seed)
        publisher.commit(publisher.diff(weights.items()))

    def slow(*given: Any) -> Files:
        begun.set()
        assert not committed.wait(0.3), "the next version was committed meanwhile"
        return encode_anchor(*given)

    monkeypatch.setattr(anchors_module, "encode_anchor", slow)
    with ThreadPoolExecutor(1) as house:
        preparing = house.submit(publisher.housekeeping)
        assert begun.wait(30)
        nudge(weights, 5)
        publisher.commit(publisher.diff(weights.items()))
        committed.set()
        work = preparing.result()
    assert work is not None
    work()
    assert anchors(bucket) == [0, 5]
    assert same(received(bucket), weights)


@pytest.mark.usefixtures("chains_of_5")
def test_a_full_disk_costs_the_extra_anchor_alone_and_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    publish(publisher, weights, 4)
    publisher.commit(publisher.diff(weights.items()))

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    for place in ("trainer_box.anchors.encode_anchor", "tempfile.TemporaryDirectory"):
        with monkeypatch.context() as patch:
            patch.setattr(place, full)
            assert publisher.housekeeping() is None
        publisher.commit(publisher.diff(weights.items()))
    assert anchors(bucket) == [0]
    publish(publisher, weights, 1)
    assert anchors(bucket) == [0, 8]


@pytest.mark.usefixtures("chains_of_5")
def test_a_run_that_is_resumed_again_and_again_gets_its_extra_anchors() -> None:
    bucket, weights = MemoryBucket(), model()
    with Publisher(bucket, "r") as publisher:
        publisher.publish(weights.items())
    for _ in range(8):
        with Publisher(bucket, "r") as publisher:
            assert publisher.adopt(weights.items()) is not None
            publish(publisher, weights, 3)
    assert anchors(bucket) == [17, 23]
    assert {manifest.kind for manifest in list(RunReader(bucket, "r").manifests())[1:]} == {"delta"}
    assert same(received(bucket), weights)


@pytest.mark.usefixtures("small_chains")
def test_the_bytes_of_the_deltas_before_a_resume_count_too() -> None:
    bucket, weights = MemoryBucket(), model()
    with Publisher(bucket, "r") as publisher:
        size = publisher.publish(weights.items()).nbytes
    fetched, joined = 0, 0
    while not (joined := max(anchors(bucket))):
        with Publisher(bucket, "r") as publisher:
            assert publisher.adopt(weights.items()) is not None
            nudge(weights, fetched, count=30)
            fetched += publisher.publish(weights.items()).nbytes
            if (work := publisher.housekeeping()) is not None:  # the first counted, which is all that a call does
                work()
    assert joined > 1
    assert fetched <= 1.5 * size


@pytest.mark.usefixtures("chains_of_5")
@pytest.mark.parametrize("lost", ["r/manifests/000001.json", "r/anchors/step_000000.safetensors"])
def test_a_chain_that_leads_to_no_anchor_gets_one_when_it_is_resumed(lost: str) -> None:
    bucket, weights = MemoryBucket(), model()
    with Publisher(bucket, "r") as publisher:
        publisher.publish(weights.items())
        publish(publisher, weights, 2)
    del bucket.stored[lost]
    with Publisher(bucket, "r") as publisher:
        assert publisher.adopt(weights.items()) is not None
        publish(publisher, weights, 2)
    assert same(received(bucket), weights)


@pytest.mark.usefixtures("chains_of_5")
def test_a_chain_on_a_base_model_by_reference_is_no_longer_than_another() -> None:
    bucket, weights = MemoryBucket(), model()
    with Publisher(bucket, "counting") as publisher:
        base = Base("user/model", "", publisher.count(weights.items()))
    with Publisher(bucket, "r", base=base) as publisher:
        publisher.publish(weights.items())
    with Publisher(bucket, "r") as publisher:
        assert publisher.adopt(weights.items()) is not None
        publish(publisher, weights, 4)
        assert anchors(bucket) == []
        publish(publisher, weights, 1)
    assert anchors(bucket) == [5]


def test_a_count_that_fails_is_made_up_for() -> None:
    bucket, weights = MemoryBucket(), model()
    with Publisher(bucket, "r") as publisher:
        publisher.publish(weights.items())
    del bucket.stored["r/anchors/step_000000.safetensors"]
    with Publisher(bucket, "r") as publisher:
        assert publisher.adopt(weights.items()) is not None
        publisher.commit(publisher.diff(weights.items()))
        work = publisher.housekeeping()
        assert work is not None
        bucket.fail_in = 0
        work()
        publish(publisher, weights, 2)
    assert anchors(bucket) == [3]


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
