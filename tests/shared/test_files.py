import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from shared.bits import DTYPES, bits, itemsize, spec_of
from shared.changes import Change
from shared.container import Header, load, read_header, write
from shared.errors import IntegrityError
from shared.files import Encoding, Label, open_checked, read_delta, read_patches, read_table, write_anchor, write_delta
from shared.frames import fold
from shared.types import Manifest, TensorSpec
from tests.shared.weights import (
    Weights,
    changes_between,
    copies,
    model,
    nudge,
    property_test,
    same,
    sparse_changes,
    weights_and_change,
)

ANCHOR = Label("r", 3, "0" * 16)
DELTA = Label("r", 4, "1" * 16, 3, "0" * 16)
DELTA_MANIFEST = Manifest("r", 4, "delta", (), "1" * 16, 0, 0, 1, "", 3, "0" * 16)
ENCODINGS: tuple[Encoding, ...] = ("packed", "coo")


def applied(old: Weights, path: Path) -> Weights:
    new = copies(old)
    for patch in read_patches(read_header(path)):
        change = patch.on(bits(new[patch.spec.name]))
        bits(new[patch.spec.name])[change.indices] = change.new
    return new


def small_delta(path: Path, encoding: Encoding = "packed") -> Path:
    old = model()
    new = copies(old)
    nudge(new, 1)
    write_delta(path, DELTA, changes_between(old, new), 99, encoding)
    return path


@pytest.mark.parametrize("encoding", ENCODINGS)
@property_test
@given(pair=weights_and_change())
def test_a_delta_file_takes_old_weights_to_new_ones_bit_for_bit(
    tmp_path: Path, encoding: Encoding, pair: tuple[Weights, Weights]
) -> None:
    old, new = pair
    changes = changes_between(old, new)
    write_delta(tmp_path / "delta", DELTA, changes, 99, encoding)
    assert same(applied(old, tmp_path / "delta"), new)
    assert sum(count for _, count in read_table(open_checked(tmp_path / "delta", DELTA))) == sum(
        change.count for change in changes
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@property_test
@given(data=st.data())
def test_changes_at_any_distance_survive_bit_for_bit(
    tmp_path: Path, encoding: Encoding, dtype: str, data: st.DataObject
) -> None:
    """In tensors of up to 2**37 elements, through the checks that a receiver makes."""
    changes = data.draw(sparse_changes((dtype,)))
    write_delta(tmp_path / "delta", DELTA, changes, 1 << 40, encoding)
    patches = read_delta(DELTA_MANIFEST, tmp_path / "delta", {change.spec.name: change.spec for change in changes})
    assert [patch.spec for patch in patches] == [change.spec for change in changes]
    for change, patch in zip(changes, patches, strict=True):
        assert torch.equal(patch.indices, change.indices)
        new = change.old + patch.payload if patch.relative else patch.payload
        assert new.dtype == change.new.dtype
        assert torch.equal(new, change.new)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gaps_beyond_two_to_the_16_survive_in_every_size(tmp_path: Path, encoding: Encoding, dtype: str) -> None:
    old = {"a": torch.zeros(200_000 * itemsize(dtype), dtype=torch.uint8).view(DTYPES[dtype])}
    new = copies(old)
    bits(new["a"])[[0, 255, 511, 70_000, 199_999]] = 1
    write_delta(tmp_path / "delta", DELTA, changes_between(old, new), 200_000, encoding)
    assert same(applied(old, tmp_path / "delta"), new)


def test_a_delta_that_changes_nothing_is_a_file_with_an_empty_table(tmp_path: Path) -> None:
    write_delta(tmp_path / "delta", DELTA, [], 99, "packed")
    header = open_checked(tmp_path / "delta", DELTA)
    assert list(header.tensors) == ["table"]
    assert read_table(header) == []
    assert header.metadata["changed"] == "0"
    assert read_patches(header) == []


def test_an_anchor_file_holds_the_tensors(tmp_path: Path) -> None:
    write_anchor(tmp_path / "anchor", ANCHOR, model())
    header = open_checked(tmp_path / "anchor", ANCHOR)
    assert same(load(header), model())
    assert header.metadata["total"] == str(sum(tensor.numel() for tensor in model().values()))


def test_a_coo_file_reads_as_the_public_format(tmp_path: Path) -> None:
    with safe_open(small_delta(tmp_path / "delta", "coo"), framework="pt") as file:
        metadata = file.metadata()
        assert (metadata["sparse"], metadata["model_version"], metadata["changed_params"]) == ("True", "4", "15")
        assert file.get_tensor("norm.weight.indices").dtype == torch.int32
        assert file.get_tensor("norm.weight.values").dtype == torch.float32


def test_files_say_what_they_are(tmp_path: Path) -> None:
    metadata = read_header(small_delta(tmp_path / "delta")).metadata
    expected = {"kind": "delta", "run_id": "r", "version": "4", "base_version": "3", "fingerprint": "1" * 16}
    assert expected.items() <= metadata.items()


def test_the_label_of_a_manifest_is_what_its_file_bears() -> None:
    assert Label.of(DELTA_MANIFEST) == DELTA


@pytest.mark.parametrize(
    "label",
    [
        replace(DELTA, run_id="s"),
        replace(DELTA, version=5),
        replace(DELTA, fingerprint="2" * 16),
        replace(DELTA, base_version=2),
        replace(DELTA, base_fingerprint="2" * 16),
        replace(DELTA, base_version=None, base_fingerprint=None),
    ],
)
def test_a_file_with_another_label_is_an_integrity_error(tmp_path: Path, label: Label) -> None:
    open_checked(small_delta(tmp_path / "delta"), DELTA)
    with pytest.raises(IntegrityError, match="manifest says"):
        open_checked(tmp_path / "delta", label)


def test_a_file_without_checksum_is_not_taken(tmp_path: Path) -> None:
    raw = small_delta(tmp_path / "delta").read_bytes()
    (tmp_path / "delta").write_bytes(raw.replace(b'"xxh3_128":', b'"xxh3_129":'))
    with pytest.raises(IntegrityError, match="checksum"):
        open_checked(tmp_path / "delta", DELTA)


def row(**changed: Any) -> list[Any]:
    return list({"name": "a", "dtype": "BF16", "shape": [4], "count": 2, **changed}.values())


@pytest.mark.parametrize(
    "table",
    [
        None,
        1,
        {"a": 1},
        [1],
        ["abcd"],
        [row()[:3]],
        [[*row(), 1]],
        [row(), row()],
        [row(name=1)],
        [row(name="\ud800")],
        [row(dtype="F4")],
        [row(dtype=["BF16"])],
        [row(shape=4)],
        [row(shape=[-4])],
        [row(shape=[2.0, 2])],
        [row(shape=[1 << 70], count=1 << 69)],
        [row(count=0)],
        [row(count=-1)],
        [row(count=5)],
        [row(count=2.0)],
        [row(count=True)],
        [row(count="2")],
        [row(count=None)],
    ],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_malformed_table_is_an_integrity_error(tmp_path: Path, table: Any, encoding: Encoding) -> None:
    with pytest.raises(IntegrityError, match="file: .*(table|lists)"):
        read_patches(file_with_table(tmp_path / "file", json.dumps(table), encoding))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "NaN", '[["a","BF16",[4],NaN]]'])
def test_a_table_that_does_not_parse_is_an_integrity_error(tmp_path: Path, text: str, encoding: Encoding) -> None:
    with pytest.raises(IntegrityError, match="file: .*table"):
        read_table(file_with_table(tmp_path / "file", text, encoding))


def file_with_table(path: Path, text: str, encoding: Encoding) -> Header:
    """And nothing else."""
    stream = torch.frombuffer(bytearray(fold(text.encode())), dtype=torch.uint8)
    tensors, entry = ([], {"tensors": text}) if encoding == "coo" else ([(spec_of("table", stream), stream)], {})
    write(path, tensors, {"encoding": encoding, **entry})
    return read_header(path)


@pytest.mark.parametrize("metadata", [{}, {"encoding": "zip"}])
def test_an_unknown_encoding_is_an_integrity_error(tmp_path: Path, metadata: dict[str, str]) -> None:
    write(tmp_path / "file", [], {"tensors": "[]", **metadata})
    with pytest.raises(IntegrityError, match="encoding"):
        read_patches(read_header(tmp_path / "file"))


@pytest.mark.parametrize("encoding", ENCODINGS)
@property_test
@given(st.data())
def test_content_damaged_under_a_good_checksum_is_patches_or_an_integrity_error(
    tmp_path: Path, encoding: Encoding, data: st.DataObject
) -> None:
    header = read_header(small_delta(tmp_path / "delta", encoding))
    tensors = load(header)
    name = data.draw(st.sampled_from(sorted(tensors)))
    raw = bits(tensors[name]).view(torch.uint8)
    raw[data.draw(st.integers(0, raw.numel() - 1))] ^= data.draw(st.integers(1, 255))
    write(tmp_path / "delta", [(spec_of(key, value), value) for key, value in tensors.items()], header.metadata)
    try:
        patches = read_patches(read_header(tmp_path / "delta"))
    except IntegrityError:
        return
    for patch in patches:
        assert 0 <= int(patch.indices[0]) and int(patch.indices[-1]) < patch.spec.numel


HUGE = TensorSpec("huge", "BF16", (1 << 17, 1 << 17))  # 32 GiB that are described and never allocated


def huge_delta(path: Path, encoding: Encoding, places: list[int]) -> Path:
    indices, old = torch.tensor(places), torch.arange(len(places), dtype=torch.int16)
    write_delta(path, DELTA, [Change(HUGE, indices, old, old + 1)], HUGE.numel, encoding)
    return path


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "places", [[(1 << 31) - 1, 1 << 31, (1 << 31) + 1], [0, (1 << 33) - 1, 1 << 33, (1 << 34) - 1], [1 << 32]]
)
def test_indices_beyond_two_to_the_31_take_memory_for_what_changed(
    tmp_path: Path, encoding: Encoding, places: list[int]
) -> None:
    (patch,) = read_delta(DELTA_MANIFEST, huge_delta(tmp_path / "file", encoding, places), {"huge": HUGE})
    assert patch.indices.tolist() == places


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("places", [[1 << 34], [3, (1 << 34) + 3], [1 << 62]])
def test_indices_beyond_a_huge_tensor_are_refused(tmp_path: Path, encoding: Encoding, places: list[int]) -> None:
    path = huge_delta(tmp_path / "file", encoding, places)
    with pytest.raises(IntegrityError, match=f"file: tensor 'huge': .*{1 << 34} elements"):
        read_delta(DELTA_MANIFEST, path, {"huge": HUGE})
