import json
import tempfile
from pathlib import Path

import pytest
import torch

from shared.bits import bits
from shared.errors import BucketError, IntegrityError, SyncError
from shared.files import Encoding
from shared.reader import RunReader
from shared.types import LARGEST_VERSION, Base
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import copies, from_patterns, model, nudge, same
from tests.trainer_box.publishing import DATA, MANIFEST, POINTER, received
from trainer_box.publisher import Publisher


def test_data_is_written_before_the_manifest_and_the_pointer_last(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r", model="user/model", base=Base("user/model", "c0ffee")), model()
    publisher.publish(weights.items())
    nudge(weights, 1)
    publisher.publish(weights.items())
    assert bucket.written() == [
        "r/run.json",
        "r/anchors/step_000000.safetensors",
        "r/manifests/000000.json",
        "r/latest.json",
        "r/deltas/step_000001.safetensors",
        "r/manifests/000001.json",
        "r/latest.json",
    ]
    assert RunReader(bucket, "r").run().base == Base("user/model", "c0ffee")


def test_a_manifest_says_what_was_published(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    anchor = publisher.publish(weights.items(), {"reward": float("nan")})
    nudge(weights, 1)
    delta = publisher.publish(weights.items(), {"reward": 0.5})
    total = sum(tensor.numel() for tensor in weights.values())
    assert (anchor.version, anchor.kind, anchor.changed, anchor.total) == (0, "anchor", total, total)
    assert (delta.version, delta.kind, delta.changed, delta.total) == (1, "delta", 15, total)
    assert (delta.base_version, delta.base_fingerprint) == (0, anchor.fingerprint)
    assert delta.nbytes == len(bucket.stored[delta.path]) < anchor.nbytes
    assert delta.seconds.keys() == {"diff", "encode", "upload"}
    assert RunReader(bucket, "r").newest() == delta
    assert json.loads(bucket.stored["r/manifests/000000.json"])["trainer"] == {"reward": "nan"}


@pytest.mark.parametrize("encoding", ["packed", "coo"])
def test_versions_arrive_bit_for_bit_in_both_encodings(bucket: MemoryBucket, encoding: Encoding) -> None:
    weights = model() | {"odd": from_patterns("F32", (4,), [0x7F800001, 0x80000000, 1, 0xFF800000])}
    with Publisher(bucket, "r", encoding=encoding) as publisher:
        for seed in range(3):
            publisher.publish(weights.items())
            assert same(received(bucket), weights)
            nudge({name: weights[name] for name in ("embed.weight", "norm.weight")}, seed)
            bits(weights["odd"])[1] ^= -(1 << 31)  # the sign of zero


def test_a_step_that_changes_nothing_is_an_empty_delta(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    first, second = publisher.publish(weights.items()), publisher.publish(weights.items())
    assert (second.kind, second.changed, second.fingerprint) == ("delta", 0, first.fingerprint)
    assert same(received(bucket), weights)


def test_a_step_that_changes_everything_is_an_anchor_when_a_delta_is_not_smaller(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    for tensor in weights.values():
        patterns = bits(tensor).view(torch.uint8)  # noise does not compress
        patterns.copy_(torch.randint(0, 256, patterns.shape, dtype=torch.uint8))
        patterns[:: tensor.element_size()] |= 1
        patterns[tensor.element_size() - 1 :: tensor.element_size()] &= 0x3F  # finite
    manifest = publisher.publish(weights.items())
    assert (manifest.kind, manifest.base_version) == ("anchor", None)
    assert manifest.path == "r/anchors/step_000001.safetensors"
    assert same(received(bucket), weights)
    nudge(weights, 1)
    assert publisher.publish(weights.items()).kind == "delta"
    assert same(received(bucket), weights)


def test_the_smaller_file_is_published_even_when_the_model_is_tiny(bucket: MemoryBucket) -> None:
    weights = {f"layers.{number}.weight": torch.zeros(2) for number in range(40)}
    publisher = Publisher(bucket, "r")
    anchor = publisher.publish(weights.items())
    assert publisher.publish(weights.items()).kind == "delta"
    weights["layers.3.weight"][0] = 1
    delta = publisher.publish(weights.items())
    assert delta.kind == "delta"
    assert delta.nbytes < anchor.nbytes
    for tensor in weights.values():
        tensor += 1.2345
    assert publisher.publish(weights.items()).nbytes <= anchor.nbytes + 100


def test_tensors_may_change_once_the_diff_is_taken(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    for seed in range(2):
        diff, expected = publisher.diff(weights.items()), copies(weights)
        nudge(weights, seed)
        publisher.commit(diff)
        assert same(received(bucket), expected)


def test_float_tensors_are_cast_to_the_serving_dtype(bucket: MemoryBucket) -> None:
    weights = {"a": torch.randn(64, 64), "n": torch.arange(4)}
    with Publisher(bucket, "r", serving_dtype=torch.bfloat16) as publisher:
        publisher.publish(weights.items())
        weights["a"] += 1e-9  # lost in bfloat16
        assert publisher.publish(weights.items()).changed == 0
        weights["a"][0] = 7.0
        publisher.publish(weights.items())
    assert same(received(bucket), {"a": weights["a"].to(torch.bfloat16), "n": weights["n"]})


def test_parameters_turned_expanded_and_tied_tensors_are_published(bucket: MemoryBucket) -> None:
    tied = torch.nn.Parameter(torch.randn(20, 30))
    weights = {"tied": tied, "head": tied, "turned": tied.t(), "expanded": torch.ones(1).expand(50)}
    with Publisher(bucket, "r") as publisher:
        for _ in range(3):
            publisher.publish(weights.items())
            assert same(received(bucket), {name: tensor.contiguous() for name, tensor in weights.items()})
            with torch.no_grad():
                tied[3, 4] += 1


def test_a_tensor_that_does_not_fit_is_refused_and_nothing_is_written(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    stored = dict(bucket.stored)
    for name, broken in (
        ("norm.weight", {name: tensor for name, tensor in weights.items() if name != "norm.weight"}),
        ("extra", {**weights, "extra": torch.zeros(1)}),
        ("norm.weight", {**weights, "norm.weight": torch.zeros(33)}),
        ("norm.weight", {**weights, "norm.weight": torch.full((32,), float("nan"))}),
        ("norm.weight", {**weights, "norm.weight": torch.full((32,), float("inf"))}),
    ):
        with pytest.raises(SyncError, match=name):
            publisher.publish(broken.items())
    assert bucket.stored == stored
    assert publisher.publish(weights.items()).version == 1


def test_numbers_are_never_reused_after_reopening(bucket: MemoryBucket) -> None:
    weights = model()
    publisher = Publisher(bucket, "r")
    publisher.publish(weights.items())
    publisher.publish(weights.items(), version=7)
    for call, spent in ((DATA, 8), (MANIFEST, 9), (POINTER, 10)):  # each did what it should and failed to say so
        bucket.fail_in, bucket.late = call, True
        with pytest.raises(BucketError):
            publisher.publish(weights.items())
        publisher = Publisher(bucket, "r")
        nudge(weights, call)
        diff = publisher.diff(weights.items())
        assert diff.version == spent + 1
    manifest = publisher.commit(diff)
    assert (manifest.version, manifest.kind, manifest.writer_epoch) == (11, "anchor", 4)
    assert same(received(bucket), weights)
    assert Publisher(bucket, "r").publish(weights.items()).writer_epoch == 5


def test_a_number_beyond_the_largest_is_refused_before_anything_is_written(bucket: MemoryBucket) -> None:
    with Publisher(bucket, "r") as publisher:
        before = bucket.written()
        with pytest.raises(SyncError, match="beyond"):
            publisher.publish(model().items(), version=LARGEST_VERSION + 1)
        assert bucket.written() == before


def test_a_spent_number_is_refused(bucket: MemoryBucket) -> None:
    publisher = Publisher(bucket, "r")
    publisher.publish(model().items(), version=5)
    for number in (5, 4, -1):
        with pytest.raises(SyncError, match=f"version {number} of run 'r' is spent, the next is 6"):
            publisher.publish(model().items(), version=number)


def test_a_diff_is_committed_once_and_only_on_what_it_was_taken_from(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    nudge(weights, 1)
    first, second = publisher.diff(weights.items()), publisher.diff(weights.items(), version=9)
    publisher.commit(first)
    failing, late = publisher.diff(weights.items()), publisher.diff(weights.items(), version=9)
    for outdated in (first, second):
        with pytest.raises(SyncError, match="spent|outdated"):
            publisher.commit(outdated)
    assert same(received(bucket), weights)
    bucket.fail_in = DATA
    with pytest.raises(BucketError):
        publisher.commit(failing)
    with pytest.raises(SyncError, match="outdated"):
        publisher.commit(late)


def test_a_closed_publisher_refuses(bucket: MemoryBucket) -> None:
    publisher = Publisher(bucket, "r")
    publisher.publish(model().items())
    diff = publisher.diff(model().items())
    publisher.close()
    publisher.close()
    with pytest.raises(SyncError, match="closed"):
        publisher.publish(model().items())
    with pytest.raises(SyncError, match="closed"):
        publisher.commit(diff)
    assert Publisher(bucket, "r").publish(model().items()).version == 1


def test_damaged_memory_is_found_by_a_recount(bucket: MemoryBucket) -> None:
    publisher = Publisher(bucket, "r")
    with pytest.raises(SyncError, match="nothing to recount"):
        publisher.recount()
    manifest = publisher.publish(model().items())
    assert publisher.recount() == manifest.fingerprint
    assert publisher._held is not None
    bits(publisher._held.tensors["norm.weight"])[0] ^= 1
    with pytest.raises(IntegrityError, match="memory is damaged"):
        publisher.close()


def test_a_run_id_that_is_no_folder_name_is_refused(bucket: MemoryBucket) -> None:
    with pytest.raises(SyncError, match="run id 'a/b'"):
        Publisher(bucket, "a/b")
    assert bucket.calls == []


def test_an_unreachable_bucket_is_not_taken_for_a_new_run(bucket: MemoryBucket) -> None:
    Publisher(bucket, "r").publish(model().items())
    bucket.calls.clear()
    Publisher(bucket, "r")
    for call in range(len(bucket.calls)):
        bucket.fail_in = call
        with pytest.raises(BucketError):
            Publisher(bucket, "r")
    assert "write r/run.json" not in bucket.calls


def test_a_full_disk_is_a_sync_error_and_the_next_publish_covers_it(
    bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    nudge(weights, 1)

    def full(*arguments: object, **options: object) -> tempfile.TemporaryDirectory[str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(SyncError, match="version 1 cannot be prepared.*No space left"):
        publisher.publish(weights.items())
    monkeypatch.undo()
    assert publisher.publish(weights.items()).version == 2
    assert same(received(bucket), weights)


def test_numbers_that_only_a_checkpoint_knows_are_not_used_again(bucket: MemoryBucket) -> None:
    Publisher(bucket, "r").publish(model().items())
    assert Publisher(bucket, "r", after=7).publish(model().items()).version == 8


def test_trainer_numbers_that_are_not_json_are_refused(bucket: MemoryBucket) -> None:
    publisher = Publisher(bucket, "r")
    with pytest.raises(SyncError, match="JSON"):
        publisher.publish(model().items(), {"reward": torch.ones(1)})
    assert publisher.publish(model().items(), {"reward": 1.0}).version == 1


def test_a_manifest_that_no_reader_would_accept_is_not_announced(bucket: MemoryBucket) -> None:
    publisher, weights = Publisher(bucket, "r"), model()
    whole = publisher.publish(weights.items())
    with pytest.raises(SyncError):
        publisher.publish(weights.items(), {1: 2, "1": 3})  # type: ignore[dict-item]
    assert RunReader(bucket, "r").newest() == whole
