import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import xxhash

from shared.errors import BucketError, ChainError, IntegrityError, SyncError
from shared.follower import Follower
from shared.snapshot import Snapshot
from shared.types import Manifest, Pointer
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.following import History, publish, refused
from tests.shared.weights import Weights, copies, model, nudge, same
from trainer_box.publisher import Publisher


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def history(bucket: MemoryBucket) -> History:
    return publish(bucket)


def test_an_empty_dict_is_filled(bucket: MemoryBucket, history: History) -> None:
    weights: Weights = {}
    assert Follower(bucket).catch_up(weights).version == 3
    assert same(weights, history[3])


@pytest.mark.parametrize("held", [0, 1, 2])
def test_a_dict_at_any_version_is_patched_in_place_with_the_deltas_it_lacks(
    bucket: MemoryBucket, history: History, held: int
) -> None:
    weights = copies(history[held])
    objects = dict(weights)
    bucket.calls.clear()
    assert Follower(bucket, "r").catch_up(weights).version == 3
    assert same(weights, history[3])
    assert all(weights[name] is tensor for name, tensor in objects.items())
    read = [call for call in bucket.calls if "safetensors" in call]
    assert read == [f"read r/deltas/step_{version:06d}.safetensors" for version in range(held + 1, 4)]


def test_a_dict_at_the_newest_version_reads_no_data(bucket: MemoryBucket, history: History) -> None:
    weights = copies(history[3])
    bucket.calls.clear()
    assert Follower(bucket, "r").catch_up(weights).version == 3
    assert same(weights, history[3])
    assert not [call for call in bucket.calls if "safetensors" in call]


def test_an_unknown_dict_of_the_same_shapes_starts_from_the_anchor_in_place(
    bucket: MemoryBucket, history: History
) -> None:
    weights = model(seed=99)
    objects = dict(weights)
    assert Follower(bucket, "r").catch_up(weights).version == 3
    assert same(weights, history[3])
    assert all(weights[name] is tensor for name, tensor in objects.items())


def test_parameters_and_turned_tensors_are_patched_in_place(bucket: MemoryBucket, history: History) -> None:
    for start in (history[1], model(seed=99)):
        weights = {name: torch.nn.Parameter(tensor) for name, tensor in copies(start).items()}
        weights["layer.weight"] = torch.nn.Parameter(start["layer.weight"].t().contiguous().t())
        Follower(bucket, "r").catch_up(dict(weights))
        assert same(weights, history[3])


def test_one_follower_goes_on_with_its_run(bucket: MemoryBucket) -> None:
    weights, held, follower = model(), Weights(), Follower(bucket, "r")
    with Publisher(bucket, "r") as publisher:
        for seed in range(4):
            published = publisher.publish(weights.items())
            assert follower.catch_up(held) == published
            assert same(held, weights)
            nudge(weights, seed)


@pytest.mark.parametrize("run_id", ["r", None])
def test_a_run_that_is_begun_anew_under_its_id_is_another_one(bucket: MemoryBucket, run_id: str | None) -> None:
    weights, held, follower = model(), Weights(), Follower(bucket, run_id)
    for begin, steps in ((0, 4), (10, 3)):
        bucket.stored.clear()
        with Publisher(bucket, "r") as publisher:
            for seed in range(begin, begin + steps):
                nudge(weights, seed)
                published = publisher.publish(weights.items())
                assert follower.catch_up(held) == published
                assert same(held, weights)


def test_a_receiver_never_goes_back_when_the_pointer_is_behind(bucket: MemoryBucket, history: History) -> None:
    pointer = bucket.stored["r/latest.json"]
    publisher = Publisher(bucket, "r")
    newer = copies(history[3])
    nudge(newer, 50)
    publisher.publish(newer.items())
    bucket.stored["r/latest.json"] = pointer
    weights = copies(newer)
    assert Follower(bucket, "r").catch_up(weights).version == 4
    assert same(weights, newer)


def test_a_follower_never_aims_below_the_newest_version_it_has_seen(bucket: MemoryBucket, history: History) -> None:
    follower, weights = Follower(bucket, "r"), Weights()
    follower.catch_up(weights)
    manifest = bucket.stored["r/manifests/000002.json"]
    pointer = Pointer("r", 2, "r/manifests/000002.json", xxhash.xxh3_128_hexdigest(manifest))
    bucket.stored["r/latest.json"] = pointer.to_json()
    unknown = model(seed=99)
    assert follower.catch_up(unknown).version == 3
    assert same(unknown, history[3])
    assert Follower(bucket, "r").catch_up(model(seed=99)).version == 2


def test_a_version_that_repeats_earlier_weights_is_taken_for_the_newest_of_them(bucket: MemoryBucket) -> None:
    first, second, weights = model(), model(), Weights()
    nudge(second, 1)
    with Publisher(bucket, "r") as publisher:
        for step in (first, second, first, first):
            publisher.publish(step.items())
    weights = copies(first)
    assert Follower(bucket, "r").catch_up(weights).version == 3
    assert same(weights, first)
    weights = copies(second)
    assert Follower(bucket, "r").catch_up(weights).version == 3
    assert same(weights, first)


def test_the_newest_run_is_followed_unless_one_is_named(bucket: MemoryBucket, history: History) -> None:
    follower, weights = Follower(bucket), Weights()
    follower.catch_up(weights)
    other = model(seed=7)
    with Publisher(bucket, "s") as publisher:
        publisher.publish(other.items())
    assert follower.catch_up(weights).run_id == "s"
    assert same(weights, other)
    assert Follower(bucket, "r").catch_up(weights).run_id == "r"
    assert same(weights, history[3])


def test_runs_of_one_bucket_never_mix(bucket: MemoryBucket) -> None:
    one, other = model(1), model(2)
    publishers = {"one": Publisher(bucket, "one"), "other": Publisher(bucket, "other")}
    for seed in range(3):
        for run_id, weights in (("one", one), ("other", other)):
            nudge(weights, seed)
            publishers[run_id].publish(weights.items())
            held: Weights = {}
            assert Follower(bucket, run_id).catch_up(held).run_id == run_id
            assert same(held, weights)
    assert all(path.startswith(("one/", "other/")) for path in bucket.stored)


def test_no_run_and_no_version_are_chain_errors(bucket: MemoryBucket) -> None:
    refused(bucket, {}, ChainError, "no run in bucket", run_id=None)
    refused(bucket, model(), ChainError, "no run 'r'")
    Publisher(bucket, "r")
    refused(bucket, model(), ChainError, "no whole version")


@pytest.mark.parametrize("held", [None, 1, "unknown"])
@pytest.mark.parametrize(
    "path",
    [
        "r/run.json",
        "r/latest.json",
        "r/manifests/000003.json",
        "r/manifests/000002.json",
        "r/deltas/step_000002.safetensors",
        "r/deltas/step_000003.safetensors",
    ],
)
def test_anything_damaged_on_the_way_leaves_the_dict_as_it_was(
    bucket: MemoryBucket, history: History, path: str, held: int | str | None
) -> None:
    start: Weights = {} if held is None else model(seed=99) if held == "unknown" else history[1]
    raw = bucket.stored[path]
    for damaged in (b"", raw[:-2], raw[: len(raw) // 2], raw[:-40] + b"\xff" * 40, b"[" * 100_000):
        bucket.stored[path] = damaged
        refused(bucket, copies(start), IntegrityError)
    del bucket.stored[path]
    if path != "r/latest.json":
        refused(bucket, copies(start), SyncError)
        bucket.stored[path] = raw
    weights = copies(start)
    Follower(bucket, "r").catch_up(weights)
    assert same(weights, history[3])


@pytest.mark.parametrize("held", [None, 1, "unknown"])
def test_a_bucket_that_fails_at_any_call_leaves_the_dict_as_it_was(
    bucket: MemoryBucket, history: History, held: int | str | None
) -> None:
    start: Weights = {} if held is None else model(seed=99) if held == "unknown" else history[1]
    bucket.calls.clear()
    Follower(bucket, "r").catch_up(copies(start))
    for call in range(len(bucket.calls)):
        bucket.fail_in = call
        refused(bucket, copies(start), BucketError, "cannot")


def test_a_delta_whose_content_does_not_lead_to_its_fingerprint_is_taken_back(
    bucket: MemoryBucket, history: History
) -> None:
    """The second of two deltas fails after the first was applied."""
    manifest = Manifest.from_json(bucket.stored["r/manifests/000002.json"], "")
    bucket.stored["r/deltas/step_000003.safetensors"] = bucket.stored[manifest.path]
    fields = json.loads(manifest.to_json())["files"][0]
    path = "r/deltas/step_000003.safetensors"
    bucket.edit("r/manifests/000003.json", files=[{**fields, "path": path}], nbytes=manifest.nbytes)
    raw = bucket.stored["r/manifests/000003.json"]
    bucket.edit("r/latest.json", manifest_xxh3=xxhash.xxh3_128_hexdigest(raw))
    refused(bucket, copies(history[1]), IntegrityError, "says")


def test_a_base_that_is_not_what_the_delta_names_is_a_chain_error(bucket: MemoryBucket, history: History) -> None:
    bucket.edit("r/manifests/000001.json", fingerprint="0" * 16)
    refused(bucket, {}, ChainError, "the bucket's version 1 has 0000000000000000")


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.pop("norm.weight"),
        lambda weights: weights.update(extra=torch.zeros(1)),
        lambda weights: weights.update({"norm.weight": torch.zeros(4, 8)}),
        lambda weights: weights.update({"norm.weight": torch.zeros(32, dtype=torch.float64)}),
    ],
)
def test_a_dict_of_other_tensors_is_refused(
    bucket: MemoryBucket, history: History, change: Callable[[Weights], object]
) -> None:
    weights = model()
    change(weights)
    refused(bucket, weights, SyncError, "not those of the run")


def test_tensors_that_cannot_be_written_are_refused_before_anything_is_read(
    bucket: MemoryBucket, history: History
) -> None:
    expanded = {**copies(history[1]), "norm.weight": torch.zeros(1).expand(32)}
    refused(bucket, expanded, SyncError, "'norm.weight' cannot be written in place")
    with torch.inference_mode():
        inference = copies(history[1])
    with pytest.raises(SyncError, match="inference mode"):
        Follower(bucket, "r").catch_up(inference)


def test_tensors_that_share_memory_but_differ_in_the_run_are_refused(bucket: MemoryBucket) -> None:
    weights = {"a": torch.arange(1000.0), "b": torch.arange(1000.0)}
    tied = torch.arange(1000.0)
    with Publisher(bucket, "r") as publisher:
        publisher.publish(weights.items())
        weights["a"][1] = 5
        publisher.publish(weights.items())
    refused(bucket, {"a": tied, "b": tied}, IntegrityError, "share memory")
    unknown = torch.zeros(1000)
    refused(bucket, {"a": unknown, "b": unknown}, IntegrityError, "share memory")


def test_tensors_that_share_memory_and_agree_in_the_run_are_patched(bucket: MemoryBucket) -> None:
    tied = torch.arange(1000.0)
    held = torch.zeros(1000)
    weights = {"a": held, "b": held}
    with Publisher(bucket, "r") as publisher:
        for _ in range(3):
            publisher.publish([("a", tied), ("b", tied)])
            Follower(bucket, "r").catch_up(weights)
            assert torch.equal(held, tied)
            tied[7] += 1


@pytest.mark.parametrize("start", [1, "unknown"])
def test_an_interrupt_while_values_are_written_leaves_the_dict_as_it_was(
    bucket: MemoryBucket, history: History, start: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = model(seed=99) if start == "unknown" else copies(history[1])
    before = copies(weights)
    commit = Snapshot.commit
    calls = []

    def interrupted(snapshot: Snapshot, version: int | None, changes: Any) -> None:
        calls.append(version)
        if len(calls) == 2:
            commit(snapshot, version, list(changes)[:1])
            raise KeyboardInterrupt
        commit(snapshot, version, changes)

    monkeypatch.setattr(Snapshot, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Follower(bucket, "r").catch_up(weights)
    assert same(weights, before)
