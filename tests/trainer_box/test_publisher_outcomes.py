"""What a publisher knows of its versions: those whose outcome is unknown, those it goes on from, and version 0."""

from collections.abc import Iterator

import pytest
import torch

from shared.errors import BucketError, SyncError
from shared.follower import Follower
from shared.reader import RunReader
from shared.types import Base
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import copies, model, nudge, same
from tests.trainer_box.publishing import DATA, MANIFEST, POINTER, received
from trainer_box.publisher import Publisher


def failures(bucket: MemoryBucket) -> Iterator[tuple[int, bool]]:
    """The bucket fails at each of the three writes of a version, before and after it took effect."""
    for late in (False, True):
        for call in (DATA, MANIFEST, POINTER):
            bucket.fail_in, bucket.late = call, late
            yield call, late


def test_after_any_failure_the_next_publish_covers_everything(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    before = copies(weights)
    publisher.publish(weights.items())
    follower, held = Follower(bucket, "r"), received(bucket)
    numbers = [0]
    for seed, (call, late) in enumerate(failures(bucket)):
        nudge(weights, seed)
        lost = copies(weights)
        with pytest.raises(BucketError):
            publisher.publish(weights.items())
        follower.catch_up(held)
        assert same(held, before) or same(held, lost)
        nudge(weights, 100 + seed)
        manifest = publisher.publish(weights.items())
        is_whole = call == POINTER or (call == MANIFEST and late)
        assert manifest.base_version == (numbers[-1] + 1 if is_whole else numbers[-1])
        numbers.append(manifest.version)
        assert manifest.kind == "delta"
        follower.catch_up(held)
        assert same(held, weights)
        assert same(received(bucket), weights)
        before = copies(weights)
    assert numbers == [0, 2, 4, 6, 8, 10, 12]
    nudge(weights, 200)
    assert publisher.publish(weights.items()).kind == "delta"
    publisher.close()


def test_an_unknown_outcome_is_read_back(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    assert publisher.settle() is None
    for call, late in failures(bucket):
        nudge(weights, 10 * call + late)
        with pytest.raises(BucketError):
            publisher.publish(weights.items())
        assert publisher.is_settled == (call == DATA)
        settled = publisher.settle()
        assert publisher.is_settled
        if call == POINTER or (call == MANIFEST and late):
            assert settled is not None and settled == RunReader(bucket, "r").newest()
            assert same(received(bucket), weights)
        else:
            assert settled is None
    assert publisher.publish(weights.items()).kind == "delta"
    assert same(received(bucket), weights)


def test_while_an_outcome_cannot_be_told_nothing_is_decided(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    nudge(weights, 1)
    bucket.fail_in, bucket.late = MANIFEST, True
    with pytest.raises(BucketError):
        publisher.publish(weights.items())
    for attempt in (publisher.settle, lambda: publisher.diff(weights.items())):
        bucket.fail_in = 0
        with pytest.raises(BucketError):
            attempt()
        assert not publisher.is_settled
    with pytest.raises(SyncError, match="nothing to recount"):
        publisher.recount()
    nudge(weights, 2)
    manifest = publisher.publish(weights.items())
    assert (manifest.version, manifest.base_version) == (2, 1)
    assert same(received(bucket), weights)


def test_the_first_version_is_taken_anew_when_it_did_not_become_whole(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    for version, call in enumerate((DATA, MANIFEST)):
        bucket.fail_in = call
        with pytest.raises(BucketError):
            publisher.publish(weights.items())
        nudge(weights, version)
    manifest = publisher.publish(weights.items())
    assert (manifest.version, manifest.kind) == (2, "anchor")
    assert same(received(bucket), weights)


def test_the_next_version_is_an_anchor_when_a_receiver_needs_one(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    publisher.rebase()
    nudge(weights, 1)
    bucket.fail_in = DATA
    with pytest.raises(BucketError):
        publisher.publish(weights.items())
    anchor, delta = publisher.publish(weights.items()), publisher.publish(weights.items())
    assert (anchor.kind, anchor.changed, delta.kind) == ("anchor", 15, "delta")


def test_a_run_is_gone_on_with_where_its_newest_version_is_what_is_held(bucket: MemoryBucket) -> None:
    weights = model()
    with Publisher(bucket, "r") as publisher:
        publisher.publish(weights.items())
        nudge(weights, 1)
        newest = publisher.publish(weights.items())
    files = sorted(bucket.stored)
    with Publisher(bucket, "r") as publisher:
        assert publisher.adopt(weights.items()) == newest
        assert sorted(bucket.stored) == files
        nudge(weights, 2)
        manifest = publisher.publish(weights.items())
    assert (manifest.version, manifest.kind, manifest.base_version) == (2, "delta", 1)
    assert same(received(bucket), weights)


def test_a_run_is_not_gone_on_with_where_other_weights_are_held(bucket: MemoryBucket) -> None:
    weights = model()
    with Publisher(bucket, "r") as publisher:
        assert publisher.adopt(weights.items()) is None
        publisher.publish(weights.items())
        assert publisher.adopt(weights.items()) is None, "a publisher that has published needs none"
    nudge(weights, 1)
    with Publisher(bucket, "r", after=5) as publisher:
        assert publisher.adopt(weights.items()) is None
        manifest = publisher.publish(weights.items())
    assert (manifest.version, manifest.kind) == (6, "anchor")
    assert same(received(bucket), weights)


def test_a_version_0_that_is_the_base_model_costs_no_bytes(bucket: MemoryBucket) -> None:
    weights = {name: tensor.float() for name, tensor in model().items()}
    with Publisher(bucket, "counting", serving_dtype=torch.bfloat16) as publisher:
        base = Base("user/model", "c0ffee", publisher.count(weights.items()))
    with Publisher(bucket, "r", base=base, serving_dtype=torch.bfloat16) as publisher:
        first = publisher.publish(weights.items())
        assert (first.kind, first.path, first.nbytes, first.fingerprint) == ("anchor", "", 0, base.fingerprint)
        weights["norm.weight"][3] = 7.0
        delta = publisher.publish(weights.items())
    assert (delta.kind, delta.base_version, delta.changed) == ("delta", 0, 1)
    held = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    held["norm.weight"][3] = model()["norm.weight"][3].to(torch.bfloat16)
    assert Follower(bucket, "r").catch_up(held).version == 1
    assert held["norm.weight"][3] == 7.0


def test_a_version_0_that_is_not_the_base_model_is_an_anchor_with_files(bucket: MemoryBucket) -> None:
    base = Base("user/model", "c0ffee", "0123456789abcdef")
    with Publisher(bucket, "r", base=base) as publisher:
        assert publisher.publish(model().items()).path == "r/anchors/step_000000.safetensors"


def test_a_receiver_that_holds_another_base_model_gets_an_anchor_when_it_asks(bucket: MemoryBucket) -> None:
    weights = model()
    with Publisher(bucket, "counting") as publisher:
        base = Base("user/model", "", publisher.count(weights.items()))
    with Publisher(bucket, "r", base=base) as publisher:
        publisher.publish(weights.items())
        publisher.rebase()
        manifest = publisher.publish(weights.items())
    assert (manifest.version, manifest.kind, manifest.path) == (1, "anchor", "r/anchors/step_000001.safetensors")
    assert same(received(bucket), weights)


def test_a_bucket_that_fails_before_anything_is_written_costs_nothing(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    nudge(weights, 1)
    bucket.fail_in = 0
    with pytest.raises(BucketError):
        publisher.publish(weights.items())
    manifest = publisher.publish(weights.items())
    assert (manifest.version, manifest.kind) == (1, "delta")
    assert same(received(bucket), weights)


def test_after_a_failure_the_tensors_are_still_held_to_those_of_the_run(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    bucket.fail_in = DATA
    with pytest.raises(BucketError):
        publisher.publish(weights.items())
    with pytest.raises(SyncError, match="norm.weight"):
        publisher.publish([("embed.weight", weights["embed.weight"]), ("layer.weight", weights["layer.weight"])])
    weights["norm.weight"][3] = float("nan")
    with pytest.raises(SyncError, match="NaN"):
        publisher.publish(weights.items())
