import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from shared.bits import spec_of
from shared.container import CHECKSUM, content_hash, load, read_header, write
from shared.errors import IntegrityError, SyncError
from tests.shared.weights import Weights, property_test, same, weights


def written(path: Path, tensors: Weights, metadata: dict[str, str] | None = None) -> Path:
    write(path, [(spec_of(name, tensor), tensor) for name, tensor in tensors.items()], metadata or {})
    return path


def raw_file(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def small_file(path: Path) -> Path:
    tensors = {"a": torch.tensor([1.0, -0.0], dtype=torch.bfloat16), "b\n\u00e9": torch.ones(3, dtype=torch.int8)}
    return written(path / "small.safetensors", tensors, {"kind": "x", "note": 'quote " and \u00fc'})


@property_test
@given(weights())
def test_what_is_written_is_read_back_bit_for_bit(tmp_path: Path, tensors: Weights) -> None:
    if "__metadata__" in tensors:
        return
    header = read_header(written(tmp_path / "file", tensors, {"key": "value"}))
    assert header.metadata == {"key": "value"}
    assert len(header.checksum) == 32
    assert same(load(header), tensors)


def test_the_safetensors_library_reads_the_file(tmp_path: Path) -> None:
    path = small_file(tmp_path)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["kind"] == "x"
        assert file.metadata()[CHECKSUM] == read_header(path).checksum
        assert file.get_tensor("a").tolist() == [1.0, -0.0]


def test_a_file_of_the_safetensors_library_is_read_and_has_no_checksum(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3), "b": torch.zeros(2, 2, dtype=torch.bfloat16), "c": torch.empty(0)}
    save_file(tensors, tmp_path / "file")
    header = read_header(tmp_path / "file")
    assert header.checksum == ""
    assert same(load(header), tensors)


def test_what_is_not_contiguous_or_wants_gradients_is_written_as_its_values(tmp_path: Path) -> None:
    turned = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    assert same(load(read_header(written(tmp_path / "file", {"a": turned}))), {"a": turned.detach().contiguous()})


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "file", {"a": torch.ones(1000)})
    loaded = load(read_header(path))["a"]
    with path.open("r+b") as file:
        file.truncate(10)
    assert loaded.sum().item() == 1000


@pytest.mark.parametrize("names", [("a", "a"), ("__metadata__",)])
def test_a_name_that_is_taken_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    tensor = torch.ones(1)
    with pytest.raises(SyncError, match=names[0]):
        write(tmp_path / "file", [(spec_of(name, tensor), tensor) for name in names], {})


def test_a_file_cut_at_any_length_is_an_integrity_error(tmp_path: Path) -> None:
    whole = small_file(tmp_path).read_bytes()
    path = tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(IntegrityError, match="cut"):
            read_header(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(IntegrityError, match="bytes"):
        read_header(path)


def test_no_changed_byte_is_accepted(tmp_path: Path) -> None:
    whole = small_file(tmp_path).read_bytes()
    path = tmp_path / "changed"
    for place in range(len(whole)):
        for value in {whole[place] ^ 1 << place % 8, ord("\t")} - {whole[place]}:
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                found = read_header(path).checksum
            except IntegrityError:
                continue
            assert found == "", f"byte {place} changed to {value} is accepted"  # the checksum's own name was hit


def test_a_checksum_can_be_left_unverified(tmp_path: Path) -> None:
    path = small_file(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert read_header(path, verify=False).tensors.keys() == {"a", "b\n\u00e9"}
    with pytest.raises(IntegrityError, match="damaged"):
        read_header(path)


ONE = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b"{} x",
        b"\xff\xfe{}",
        b"[" * 50_000,
        b'{"a":' * 50_000,
        b'{"__metadata__":{"k":"\\ud800"}}',
        b'{"\\ud800":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        {"__metadata__": None, "a": ONE},
        {"__metadata__": {"k": 1}, "a": ONE},
        {"__metadata__": {CHECKSUM: ["x"]}, "a": ONE},
        {"__metadata__": {CHECKSUM: "x"}, "a": ONE},
        {"a": None},
        {"a": [ONE]},
        {"a": "U8"},
        {"a": {}},
        {"a": {**ONE, "extra": 1}},
        {"a": {**ONE, "dtype": "F4"}},
        {"a": {**ONE, "dtype": None}},
        {"a": {**ONE, "dtype": {}}},
        {"a": {**ONE, "shape": 4}},
        {"a": {**ONE, "shape": [-2, -2]}},
        {"a": {**ONE, "shape": [4.0]}},
        {"a": {**ONE, "shape": ["4"]}},
        {"a": {**ONE, "shape": [2**70, 0], "data_offsets": [0, 0]}},
        {"a": {**ONE, "data_offsets": [0]}},
        {"a": {**ONE, "data_offsets": [0, 4, 8]}},
        {"a": {**ONE, "data_offsets": ["0", "4"]}},
        {"a": {**ONE, "data_offsets": [0.0, 4.0]}},
        {"a": {**ONE, "data_offsets": [-4, 0]}},
        {"a": {**ONE, "data_offsets": [4, 0]}},
        {"a": {**ONE, "data_offsets": [2**80, 2**80 + 4]}},
        {"a": {**ONE, "data_offsets": None}},
        {"a": ONE, "b": ONE},
        {"a": ONE, "b": {**ONE, "data_offsets": [2, 6]}},
        {"a": {**ONE, "shape": [2], "data_offsets": [0, 2]}, "b": {**ONE, "shape": [1], "data_offsets": [3, 4]}},
        {"a": {**ONE, "shape": [2**40], "data_offsets": [0, 2**40]}},
    ],
)
def test_a_malicious_header_is_an_integrity_error(tmp_path: Path, header: Any) -> None:
    with pytest.raises(IntegrityError):
        read_header(raw_file(tmp_path / "file", header, b"\0" * 4))


@pytest.mark.parametrize("text", [b"{}\t", b"\n{}", b" {}"])
def test_a_header_is_padded_with_spaces_at_its_end_only(tmp_path: Path, text: bytes) -> None:
    assert read_header(raw_file(tmp_path / "file", b"{}  ")).tensors == {}
    with pytest.raises(IntegrityError, match="padded"):
        read_header(raw_file(tmp_path / "file", text))


@pytest.mark.parametrize("length", [0, 3, 1 << 20, 100_000_001, 1 << 40, (1 << 64) - 1])
def test_a_header_of_a_wrong_length_is_an_integrity_error(tmp_path: Path, length: int) -> None:
    with pytest.raises(IntegrityError):
        read_header(raw_file(tmp_path / "file", {"a": ONE}, b"\0" * 4, length))


@property_test
@given(st.binary(max_size=200))
def test_noise_is_an_integrity_error(tmp_path: Path, noise: bytes) -> None:
    (tmp_path / "file").write_bytes(noise)
    with pytest.raises(IntegrityError):
        read_header(tmp_path / "file")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@property_test
@given(
    st.dictionaries(st.sampled_from(["a", "__metadata__"]), JSON | st.fixed_dictionaries({key: JSON for key in ONE}))
)
def test_any_json_for_a_header_is_read_or_an_integrity_error(tmp_path: Path, header: dict[str, Any]) -> None:
    path = raw_file(tmp_path / "file", json.dumps(header, ensure_ascii=False).encode(errors="replace"))
    try:
        load(read_header(path))
    except IntegrityError:
        return
    assert set(header) <= {"a", "__metadata__"}


def test_the_content_hash_covers_every_byte(tmp_path: Path) -> None:
    path = small_file(tmp_path)
    before = content_hash(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    assert len(before) == 32
    assert content_hash(path) != before
