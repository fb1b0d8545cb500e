import json
from typing import Any

import pytest
import xxhash

from shared import layout
from shared.errors import BucketError, ChainError, IntegrityError, SyncError
from shared.files import read_anchor
from shared.reader import RunReader, list_runs, newest_run
from shared.types import Run
from tests.shared.extra_anchor import add_anchor
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, model, nudge, same
from trainer_box.publisher import Publisher


@pytest.fixture
def bucket() -> MemoryBucket:
    """A run "r" of three versions: an anchor and two deltas."""
    bucket, weights = MemoryBucket(), model()
    with Publisher(bucket, "r", model="user/model") as publisher:
        for seed in range(3):
            publisher.publish(weights.items())
            nudge(weights, seed)
    return bucket


def second_version() -> Weights:
    weights = model()
    nudge(weights, 0)
    return weights


def test_the_newest_run_is_the_one_created_last() -> None:
    bucket = MemoryBucket()
    for hour, run_id in enumerate(["z", "a", "m"]):
        run = Run(run_id, f"2026-01-01T0{hour}:00:00.000000+00:00", "user/model")
        bucket.write(layout.run_file(run_id), run.to_json())
    bucket.write("something/else.txt", b"")
    assert [run.run_id for run in list_runs(bucket)] == ["z", "a", "m"]
    assert newest_run(bucket).run_id == "m"


def test_a_bucket_without_runs_is_a_chain_error() -> None:
    with pytest.raises(ChainError, match="no run in bucket local:memory"):
        newest_run(MemoryBucket())


def test_a_bucket_that_cannot_be_listed_is_not_a_bucket_without_runs(bucket: MemoryBucket) -> None:
    for calls in range(2):
        bucket.fail_in = calls
        with pytest.raises(BucketError):
            newest_run(bucket)


def test_a_damaged_run_file_is_not_passed_over(bucket: MemoryBucket) -> None:
    bucket.stored["s/run.json"] = b""
    with pytest.raises(IntegrityError, match="s/run.json"):
        newest_run(bucket)


def test_a_renamed_or_copied_run_is_refused(bucket: MemoryBucket) -> None:
    bucket.stored["copy/run.json"] = bucket.stored["r/run.json"]
    for call in (lambda: newest_run(bucket), RunReader(bucket, "copy").run):
        with pytest.raises(IntegrityError, match="copy/run.json is that of run 'r'"):
            call()


def test_a_run_that_does_not_exist_is_a_chain_error(bucket: MemoryBucket) -> None:
    with pytest.raises(ChainError, match="no run 's'"):
        RunReader(bucket, "s").run()


@pytest.mark.parametrize("run_id", ["../r", "r/deltas", ""])
def test_a_run_id_that_is_a_path_is_refused(bucket: MemoryBucket, run_id: str) -> None:
    with pytest.raises(SyncError, match="run id"):
        RunReader(bucket, run_id)


def test_the_pointer_leads_to_the_newest_manifest(bucket: MemoryBucket) -> None:
    assert RunReader(bucket, "r").newest().version == 2
    assert RunReader(bucket, "r").run().model == "user/model"


def test_manifests_come_in_the_order_of_versions(bucket: MemoryBucket) -> None:
    with Publisher(bucket, "r") as publisher:
        publisher.publish(model().items(), version=999_999)
        publisher.publish(model().items(), version=1_000_000)
    bucket.stored["r/manifests/notes.txt"] = b""
    versions = [manifest.version for manifest in RunReader(bucket, "r").manifests()]
    assert versions == [0, 1, 2, 999_999, 1_000_000]


def test_an_extra_anchor_is_no_version_of_its_own(bucket: MemoryBucket) -> None:
    add_anchor(bucket, 1, second_version())
    bucket.stored["r/manifests/000009.anchor.json"] = b"not of any version"
    assert [manifest.version for manifest in RunReader(bucket, "r").manifests()] == [0, 1, 2]
    assert RunReader(bucket, "r").manifest(1).kind == "delta"


@pytest.mark.parametrize("shards", [1, 3])
def test_an_extra_anchor_of_a_version_is_found_beside_it(bucket: MemoryBucket, shards: int) -> None:
    reader = RunReader(bucket, "r")
    assert reader.anchor(1) is None
    added = add_anchor(bucket, 1, second_version(), shards)
    assert reader.anchor(1) == added
    assert reader.anchor(0) is None
    with reader.fetched(added) as paths:
        assert same(read_anchor(added, paths), second_version())


def test_a_walk_down_the_versions_lists_the_bucket_once(bucket: MemoryBucket) -> None:
    add_anchor(bucket, 1, second_version())
    reader = RunReader(bucket, "r")
    for walk in range(1, 4):
        bucket.calls.clear()
        assert [version for version in (2, 1, 0) if reader.anchor(version)] == [1]
        read = ["read r/manifests/000001.anchor.json", "read r/manifests/000001.json"] if walk == 1 else []
        assert bucket.calls == ["list r/manifests", *read]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"fingerprint": "0" * 16}, "has fingerprint 0000000000000000, but version 1 has"),
        ({"version": 2}, "is the manifest of version 2"),
        ({"run_id": "s"}, "of run 's'"),
        ({"files": [], "path": "", "nbytes": 0}, "0 files"),
        ({"format": 3}, "format 3"),
        ({"kind": "delta", "base_version": 0, "base_fingerprint": "0" * 16}, "lists"),
    ],
)
def test_an_extra_anchor_of_something_else_is_an_integrity_error(
    bucket: MemoryBucket, fields: dict[str, Any], match: str
) -> None:
    add_anchor(bucket, 1, second_version())
    bucket.edit("r/manifests/000001.anchor.json", **fields)
    with pytest.raises(IntegrityError, match=f"r/manifests/000001.anchor.json.*{match}"):
        RunReader(bucket, "r").anchor(1)


def test_a_delta_is_no_extra_anchor(bucket: MemoryBucket) -> None:
    bucket.stored["r/manifests/000001.anchor.json"] = bucket.stored["r/manifests/000001.json"]
    with pytest.raises(IntegrityError, match="kind delta"):
        RunReader(bucket, "r").anchor(1)


def test_an_extra_anchor_of_a_version_that_is_not_published_is_a_chain_error(bucket: MemoryBucket) -> None:
    add_anchor(bucket, 1, second_version())
    del bucket.stored["r/manifests/000001.json"]
    with pytest.raises(ChainError, match="no manifest of version 1"):
        RunReader(bucket, "r").anchor(1)


def test_a_manifest_is_read_once(bucket: MemoryBucket) -> None:
    reader = RunReader(bucket, "r")
    bucket.calls.clear()
    assert reader.manifest(1) is reader.manifest(1)
    assert bucket.calls == ["read r/manifests/000001.json"]


def test_without_a_pointer_the_newest_manifest_is_that_of_the_newest_version(bucket: MemoryBucket) -> None:
    newest = RunReader(bucket, "r").newest()
    del bucket.stored["r/latest.json"]
    assert RunReader(bucket, "r").newest() == newest


def test_a_run_without_pointer_and_manifests_has_no_whole_version(bucket: MemoryBucket) -> None:
    del bucket.stored["r/latest.json"]
    for path in bucket.files("r/manifests"):
        del bucket.stored[path]
    with pytest.raises(ChainError, match="no whole version"):
        RunReader(bucket, "r").newest()


@pytest.mark.parametrize("raw", [b"", b"{}", b"null", b"\xff"])
def test_a_damaged_pointer_is_an_integrity_error(bucket: MemoryBucket, raw: bytes) -> None:
    bucket.stored["r/latest.json"] = raw
    with pytest.raises(IntegrityError, match="r/latest.json"):
        RunReader(bucket, "r").newest()


@pytest.mark.parametrize(
    "fields", [{"run_id": "s"}, {"version": 1}, {"manifest": "r/manifests/000001.json"}, {"manifest": "../x"}]
)
def test_a_pointer_to_elsewhere_is_an_integrity_error(bucket: MemoryBucket, fields: dict[str, Any]) -> None:
    bucket.edit("r/latest.json", **fields)
    with pytest.raises(IntegrityError, match="r/latest.json points to"):
        RunReader(bucket, "r").newest()


def test_a_pointer_to_a_manifest_that_is_gone_is_an_integrity_error(bucket: MemoryBucket) -> None:
    del bucket.stored["r/manifests/000002.json"]
    with pytest.raises(IntegrityError, match="r/latest.json points to r/manifests/000002.json, which is not"):
        RunReader(bucket, "r").newest()


def test_a_manifest_changed_after_the_pointer_is_an_integrity_error(bucket: MemoryBucket) -> None:
    bucket.edit("r/manifests/000002.json", changed=1)
    with pytest.raises(IntegrityError, match="the pointer says"):
        RunReader(bucket, "r").newest()


def test_a_missing_manifest_is_a_chain_error_and_a_failing_bucket_is_not(bucket: MemoryBucket) -> None:
    with pytest.raises(ChainError, match="no manifest of version 9"):
        RunReader(bucket, "r").manifest(9)
    bucket.fail_in = 0
    with pytest.raises(BucketError):
        RunReader(bucket, "r").manifest(1)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "r/deltas/..",
        "r/deltas/../../../etc/passwd",
        "/etc/passwd",
        "s/deltas/step_000001.safetensors",
        "r/anchors/step_000001.safetensors",
        "r/deltas/step_000002.safetensors",
        "r/deltas/deeper/step_000001.safetensors",
        "r/deltas/other.safetensors",
    ],
)
def test_a_manifest_that_lists_a_file_of_something_else_is_an_integrity_error(bucket: MemoryBucket, path: str) -> None:
    files = json.loads(bucket.stored["r/manifests/000001.json"])["files"]
    bucket.edit("r/manifests/000001.json", files=[{**files[0], "path": path}], path=path)
    with pytest.raises(IntegrityError, match="r/manifests/000001.json lists"):
        RunReader(bucket, "r").manifest(1)


@pytest.mark.parametrize("fields", [{"run_id": "s"}, {"version": 3}])
def test_a_manifest_of_something_else_is_an_integrity_error(bucket: MemoryBucket, fields: dict[str, Any]) -> None:
    bucket.edit("r/manifests/000001.json", **fields)
    with pytest.raises(IntegrityError, match="is the manifest of"):
        RunReader(bucket, "r").manifest(1)


def test_fetched_files_are_those_of_the_manifest_and_gone_afterwards(bucket: MemoryBucket) -> None:
    reader = RunReader(bucket, "r")
    manifest = reader.manifest(1)
    with reader.fetched(manifest) as paths:
        assert [path.name for path in paths] == ["step_000001.safetensors"]
        assert xxhash.xxh3_128_hexdigest(paths[0].read_bytes()) == manifest.files[0].content_hash
    assert not paths[0].exists()


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-1], lambda raw: raw + b"\0", lambda raw: bytes([raw[0] ^ 1]) + raw[1:]]
)
def test_a_damaged_data_file_is_an_integrity_error(bucket: MemoryBucket, damage: Any) -> None:
    path = "r/deltas/step_000001.safetensors"
    bucket.stored[path] = damage(bucket.stored[path])
    reader = RunReader(bucket, "r")
    with pytest.raises(IntegrityError, match=path), reader.fetched(reader.manifest(1)):
        pass


def test_a_missing_data_file_is_a_chain_error_and_a_failing_bucket_is_not(bucket: MemoryBucket) -> None:
    reader = RunReader(bucket, "r")
    manifest = reader.manifest(1)
    bucket.fail_in = 0
    with pytest.raises(BucketError), reader.fetched(manifest):
        pass
    del bucket.stored[manifest.path]
    with pytest.raises(ChainError, match="version 1 cannot be had"), reader.fetched(manifest):
        pass
