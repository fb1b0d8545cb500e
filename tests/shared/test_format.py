"""What FORMAT.md prints is what the code computes, and what it says is enough for a decoder without the code."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
import zstandard

from shared import fingerprint, layout, packed
from shared.bits import DTYPES, bits, itemsize
from shared.bucket import open_bucket
from shared.changes import Change, fingerprint_gain
from shared.container import read_header
from shared.errors import IntegrityError
from shared.files import Encoding, Label, read_anchor, read_delta, write_delta
from shared.types import FORMAT, LARGEST_VERSION, RUN_ID, DataFile, Manifest, Pointer, Run, TensorSpec, now
from tests.shared.verifier import verify
from tests.shared.weights import Weights, from_patterns, nudge, same
from trainer_box.publisher import Publisher

TEXT = (Path(__file__).parents[2] / "shared" / "FORMAT.md").read_text(encoding="utf-8")
FILES = ("anchor", "delta", "coo", "empty")
SKIPPABLE = bytes.fromhex("502a4d18 03000000 616263")
BLOCKS = {name: text for name, text in re.findall(r"^```\w+ (\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)}


def vectors(name: str) -> Any:
    return json.loads(BLOCKS[name])


def text(number: int) -> str:
    return fingerprint.to_text(number)


def spec(row: Any) -> TensorSpec:
    name, dtype, shape = row[:3]
    return TensorSpec(name, dtype, tuple(shape))


def patterns(dtype: str, digits: str) -> torch.Tensor:
    """Flat bits from the elements' bytes."""
    raw, size = bytes.fromhex(digits), itemsize(dtype)
    numbers = [int.from_bytes(raw[start : start + size], "little") for start in range(0, len(raw), size)]
    return bits(from_patterns(dtype, (len(numbers),), numbers))


def printed_weights() -> Weights:
    return {
        row["name"]: patterns(row["dtype"], row["bytes"]).view(DTYPES[row["dtype"]]).reshape(row["shape"])
        for row in vectors("tensors")
    }


def printed_changes() -> list[Change]:
    specs = {row["name"]: spec((row["name"], row["dtype"], row["shape"])) for row in vectors("tensors")}
    return [
        Change(
            specs[row["name"]],
            torch.tensor(row["indices"]),
            patterns(specs[row["name"]].dtype, row["old"]),
            patterns(specs[row["name"]].dtype, row["new"]),
        )
        for row in vectors("gains")["changes"]
    ]


def test_every_block_of_vectors_is_checked_here() -> None:
    assert BLOCKS.keys() == {"packed", "mix", "tensors", "fingerprint", "gains", *FILES}
    assert {"BF16", "F16", "F32", "I64", "BOOL", "I8"} == {row["dtype"] for row in vectors("tensors")}


def test_the_printed_mixes_are_right() -> None:
    for before, after in vectors("mix"):
        number = int(before, 16)
        x = torch.tensor([number - (1 << 64) if number >> 63 else number])
        assert text(int(fingerprint._mix(x).item())) == after


@pytest.mark.parametrize("row", vectors("tensors"), ids=lambda row: row["dtype"])
def test_the_printed_terms_of_a_tensor_are_right(row: dict[str, Any]) -> None:
    described = spec((row["name"], row["dtype"], row["shape"]))
    elements = patterns(row["dtype"], row["bytes"])
    assert text(fingerprint._seed(described)) == row["seed"]
    assert text(fingerprint.header(described)) == row["mix_seed"]
    terms = [fingerprint.elements(described, torch.tensor([i]), elements[i : i + 1]) for i in range(len(elements))]
    assert list(map(text, terms)) == row["elements"]
    assert text(fingerprint.tensor(described, elements)) == row["tensor"]


def test_the_printed_fingerprints_and_gains_are_right() -> None:
    before = fingerprint.fingerprint(printed_weights())
    assert text(before) == vectors("fingerprint")["fingerprint"]
    changes = printed_changes()
    assert [text(fingerprint_gain([change])) for change in changes] == [
        row["gain"] for row in vectors("gains")["changes"]
    ]
    assert text(before + fingerprint_gain(changes)) == vectors("gains")["fingerprint"]


def test_the_printed_streams_are_what_is_written_and_read() -> None:
    printed = vectors("packed")
    changes = [
        Change(spec(row), torch.tensor(indices), patterns(row[1], old), patterns(row[1], new))
        for row, indices, old, new in zip(
            printed["table"], printed["indices"], printed["old"], printed["new"], strict=True
        )
    ]
    streams = packed.encode(changes)
    plain = {name: zstandard.ZstdDecompressor().decompress(stream).hex(" ") for name, stream in streams.items()}
    assert plain == printed["streams"]
    patches = packed.decode([(spec(row), row[3]) for row in printed["table"]], streams)
    for change, patch in zip(changes, patches, strict=True):
        assert torch.equal(patch.indices, change.indices)
        assert torch.equal(change.old + patch.payload, change.new)


def test_the_printed_files_are_read(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(base64.b64decode(BLOCKS[name]))
    first, second = vectors("fingerprint")["fingerprint"], vectors("gains")["fingerprint"]
    weights = printed_weights()
    anchor = Manifest("r", 0, "anchor", (), first, 12, 12, 1, now())
    assert same(read_anchor(anchor, [tmp_path / "anchor"]), weights)
    specs = read_header(tmp_path / "anchor").tensors
    delta = Manifest("r", 1, "delta", (), second, 3, 12, 1, now(), 0, first)
    for name in ("delta", "coo"):
        for patch, change in zip(read_delta(delta, tmp_path / name, specs), printed_changes(), strict=True):
            made = patch.on(bits(weights[patch.spec.name]))
            assert torch.equal(made.indices, change.indices)
            assert torch.equal(made.old, change.old)
            assert torch.equal(made.new, change.new)
    empty = Manifest("r", 2, "delta", (), second, 0, 12, 1, now(), 1, second)
    assert read_delta(empty, tmp_path / "empty", specs) == []


@pytest.mark.parametrize("name", ["delta", "coo"])
def test_a_verifier_without_this_code_agrees_with_the_printed_files(tmp_path: Path, name: str) -> None:
    first, second = vectors("fingerprint")["fingerprint"], vectors("gains")["fingerprint"]
    put(tmp_path, "anchor", Manifest("r", 0, "anchor", (), first, 12, 12, 1, now()))
    put(tmp_path, name, Manifest("r", 1, "delta", (), second, 3, 12, 1, now(), 0, first))
    put(tmp_path, "empty", Manifest("r", 2, "delta", (), second, 0, 12, 1, now(), 1, second))
    verify(tmp_path, "r", 2)


def put(bucket: Path, name: str, manifest: Manifest) -> None:
    raw = base64.b64decode(BLOCKS[name])
    place = layout.anchor if manifest.kind == "anchor" else layout.delta
    file = DataFile(place("r", manifest.version), len(raw), xxhash.xxh3_128_hexdigest(raw))
    described = replace(manifest, files=(file,)).to_json()
    for path, content in ((file.path, raw), (layout.manifest("r", manifest.version), described)):
        (bucket / path).parent.mkdir(parents=True, exist_ok=True)
        (bucket / path).write_bytes(content)


def stream(content: bytes, **settings: Any) -> bytes:
    return zstandard.ZstdCompressor(**settings).compress(content)


def test_readers_take_what_writers_may_do_otherwise() -> None:
    """Escapes of numbers without need, odd shifts, bits that fill up, zstd's own checksum, bits that do not change."""
    streams = {
        "gaps": stream(bytes([7, 255, 0]), write_checksum=True),
        "gap_escapes": stream((1).to_bytes(8, "little")),
        "remainders": stream(bytes([0b00000001, 0b11000010])),
        "differences": stream(bytes([0xFF])),
        "difference_escapes_1": stream(bytes([255, 0])),
    }
    [patch] = packed.decode([(TensorSpec("x", "I8", (300,)), 2)], streams)
    assert patch.indices.tolist() == [128 + 1, 128 + 1 + 1 + 16]
    assert patch.payload.tolist() == [-128, 0]


@pytest.mark.parametrize(
    "damaged",
    [
        SKIPPABLE + stream(bytes(3)),
        stream(bytes(3)) + SKIPPABLE,
        stream(bytes(3), write_checksum=True)[:-1] + b"\0",
        bytes.fromhex("28b52ffd 21 07 03 190000 000000"),
    ],
    ids=["skippable before", "skippable after", "checksum", "dictionary"],
)
def test_readers_refuse_other_frames(damaged: bytes) -> None:
    with pytest.raises(IntegrityError, match="gaps"):
        packed.decode([(TensorSpec("x", "I8", (300,)), 2)], {"gaps": damaged, "differences": stream(bytes(1))})


@pytest.mark.parametrize(
    "name",
    [
        "step_000011.safetensors",
        "step_000011-00002-of-00003.safetensors",
        "step_000011-00009-of-00003.safetensors",
        "000011.json",
        "step_000011-1-of-3.safetensors",
        "step_0000011.safetensors",
        "step_000011.anchor.json",
        "step_000011.safetensors\n",
        "step_000012.safetensors",
    ],
)
def test_the_printed_pattern_of_names_is_the_one_that_is_read(name: str) -> None:
    [pattern] = re.findall(r"`(\(step_\).*)`", TEXT)
    assert (layout.version_of(name) == 11) == bool(re.fullmatch(pattern.replace("VERSION", "000011"), name))


def test_every_dtype_path_field_and_limit_is_described() -> None:
    for name in DTYPES:
        assert f"| `{name}` | {itemsize(name)} |" in TEXT
    for place in (layout.run_file, layout.pointer):
        assert f"`{place('<run>')}`" in TEXT
    for version_place in (layout.delta, layout.manifest, layout.anchor_manifest, layout.rollouts):
        assert f"`{version_place('<run>', 11)}`" in TEXT
    assert f"`{layout.anchor('<run>', 10)}`" in TEXT
    manifest = Manifest("r", 1, "delta", (DataFile("p", 1, "0"),), "0", 1, 1, 1, now(), 0, "0")
    documents = [Run("r", now(), "").to_json(), manifest.to_json(), Pointer("r", 1, "", "").to_json()]
    fields = {field for document in documents for field in json.loads(document)}
    assert [field for field in sorted(fields) if f"`{field}`" not in TEXT] == []
    assert f"`{RUN_ID.pattern}`" in TEXT
    assert f"version {FORMAT}\n" in TEXT
    assert str(LARGEST_VERSION) in TEXT


@pytest.mark.parametrize("encoding", ["packed", "coo"])
def test_every_entry_of_the_metadata_is_described(tmp_path: Path, encoding: Encoding) -> None:
    write_delta(tmp_path / "file", Label("r", 1, "0" * 16, 0, "1" * 16), printed_changes(), 12, encoding)
    entries = read_header(tmp_path / "file").metadata
    assert [entry for entry in entries if f"`{entry}`" not in TEXT] == []


def publish_every_dtype(bucket: Path, encoding: Encoding) -> list[Manifest]:
    weights: Weights = {
        "embed.weight": torch.linspace(-1, 1, 20_000).to(torch.bfloat16).reshape(40, 500),
        "gr\u00f6\u00dfe": torch.arange(7_000.0),
        "half": torch.arange(1000.0).to(torch.float16),
        "eight": torch.arange(100).to(torch.int8),
        "double": torch.arange(300.0, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "frozen": torch.arange(12.0).reshape(3, 4),
    }
    bits(weights["frozen"])[:4] = torch.tensor([-(1 << 31), 1, 0x7FFFFF, 5], dtype=torch.int32)  # -0.0 and denormals
    trained = {name: tensor for name, tensor in weights.items() if name not in ("empty", "frozen")}
    with Publisher(open_bucket(f"local:{bucket}"), "r", encoding=encoding) as publisher:
        published = [publisher.publish(weights.items())]
        for seed in range(5):
            nudge(trained, seed, 1 + 3 * seed)
            published.append(publisher.publish(weights.items()))
    return published


@pytest.mark.parametrize("encoding", ["packed", "coo"])
def test_a_verifier_without_this_code_agrees(tmp_path: Path, encoding: Encoding) -> None:
    published = publish_every_dtype(tmp_path, encoding)
    assert [manifest.kind for manifest in published] == ["anchor", *["delta"] * 5]
    verify(tmp_path, "r", 5)


def test_a_verifier_without_this_code_finds_what_is_wrong(tmp_path: Path) -> None:
    published = publish_every_dtype(tmp_path, "packed")
    path = tmp_path / published[2].path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="step_000002"):
        verify(tmp_path, "r", 5)
    path.write_bytes(whole)
    place = tmp_path / layout.manifest("r", 4)
    place.write_bytes(place.read_bytes().replace(published[4].fingerprint.encode(), b"0" * 16))
    with pytest.raises(ValueError, match="another version"):
        verify(tmp_path, "r", 4)
