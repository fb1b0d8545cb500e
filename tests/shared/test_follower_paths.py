"""Which way the follower takes when there are several, and what it does when the first is blocked."""

import pytest
import xxhash

from shared.errors import BucketError, IntegrityError, SyncError
from shared.follower import Follower
from shared.types import Pointer
from tests.shared.extra_anchor import add_anchor
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.following import History, publish, refused
from tests.shared.weights import Weights, copies, model, same

ANCHOR = "r/anchors/step_000002.safetensors"


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def history(bucket: MemoryBucket) -> History:
    return publish(bucket)


@pytest.mark.parametrize("shards", [1, 2])
def test_an_extra_anchor_is_where_a_newcomer_starts(bucket: MemoryBucket, history: History, shards: int) -> None:
    add_anchor(bucket, 2, history[2], shards)
    for weights in ({}, model(seed=99)):
        bucket.calls.clear()
        Follower(bucket, "r").catch_up(weights)
        assert same(weights, history[3])
        read = [call for call in bucket.calls if "safetensors" in call]
        assert all(call.startswith("read r/anchors/step_000002") for call in read[:-1])
        assert read[shards:] == ["read r/deltas/step_000003.safetensors"]


@pytest.mark.parametrize("damage", [None, b"", b"x" * 99])
@pytest.mark.parametrize("path", [ANCHOR, "r/manifests/000002.anchor.json"])
def test_an_extra_anchor_that_is_damaged_or_gone_leaves_the_way_before(
    bucket: MemoryBucket, history: History, path: str, damage: bytes | None
) -> None:
    add_anchor(bucket, 2, history[2])
    del bucket.stored[path]
    if damage is not None:
        bucket.stored[path] = damage
    for weights in ({}, model(seed=99), copies(history[1])):
        Follower(bucket, "r").catch_up(weights)
        assert same(weights, history[3])


@pytest.mark.parametrize("damage", [None, b"", b"x" * 99])
def test_a_delta_that_is_damaged_or_gone_is_passed_by_through_a_later_anchor(
    bucket: MemoryBucket, history: History, damage: bytes | None
) -> None:
    path = "r/deltas/step_000002.safetensors"
    del bucket.stored[path]
    if damage is not None:
        bucket.stored[path] = damage
    for start in ({}, model(seed=99), history[1]):
        refused(bucket, copies(start), SyncError, "step_000002")
    add_anchor(bucket, 2, history[2])
    for start in ({}, model(seed=99), history[0], history[1]):
        weights = copies(start)
        Follower(bucket, "r").catch_up(weights)
        assert same(weights, history[3])


def test_an_anchor_under_a_manifest_that_fits_but_of_other_weights_is_not_the_last_word(
    bucket: MemoryBucket, history: History
) -> None:
    add_anchor(bucket, 2, history[1])
    weights: Weights = {}
    Follower(bucket, "r").catch_up(weights)
    assert same(weights, history[3])


@pytest.mark.parametrize("held", [2, 3, "unknown"])
def test_a_damaged_manifest_that_is_not_on_the_way_does_not_matter(
    bucket: MemoryBucket, history: History, held: int | str
) -> None:
    add_anchor(bucket, 2, history[2])
    for version in (0, 1):
        bucket.stored[f"r/manifests/00000{version}.json"] = b""
    weights = model(seed=99) if held == "unknown" else copies(history[int(held)])
    Follower(bucket, "r").catch_up(weights)
    assert same(weights, history[3])


def test_weights_that_may_be_newer_than_the_pointer_are_not_taken_back(bucket: MemoryBucket, history: History) -> None:
    manifest = bucket.stored["r/manifests/000002.json"]
    pointer = Pointer("r", 2, "r/manifests/000002.json", xxhash.xxh3_128_hexdigest(manifest))
    bucket.stored["r/latest.json"] = pointer.to_json()
    bucket.stored["r/manifests/000003.json"] = b""
    refused(bucket, copies(history[3]), IntegrityError, "r/manifests/000003.json")


def test_the_error_of_the_first_path_is_raised_when_all_fail(bucket: MemoryBucket, history: History) -> None:
    add_anchor(bucket, 2, history[2])
    bucket.stored["r/deltas/step_000002.safetensors"] = b""
    bucket.stored[ANCHOR] = b""
    refused(bucket, copies(history[1]), IntegrityError, "deltas/step_000002")
    refused(bucket, {}, IntegrityError, "anchors/step_000002")


def test_a_bucket_that_fails_on_the_first_path_is_not_asked_for_another(
    bucket: MemoryBucket, history: History
) -> None:
    add_anchor(bucket, 2, history[2])
    calls = len(bucket.calls)
    Follower(bucket, "r").catch_up(copies(history[1]))
    bucket.fail_in = bucket.calls[calls:].index("read r/deltas/step_000002.safetensors")
    bucket.calls.clear()
    refused(bucket, copies(history[1]), BucketError, "cannot read r/deltas/step_000002.safetensors")
    assert bucket.calls[-1] == "read r/deltas/step_000002.safetensors"
