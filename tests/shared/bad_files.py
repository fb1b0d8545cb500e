"""Anchor and delta files that no publisher writes, and runs whose newest version is such a file."""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
import zstandard

from shared import layout
from shared.bits import bits, spec_of
from shared.container import CHECKSUM, content_hash, load, read_header, write
from shared.files import Encoding, Label, read_anchor, read_delta, write_anchor, write_delta
from shared.fingerprint import fingerprint, to_text
from shared.types import DataFile, Kind, Manifest, Pointer, now
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, changes_between, from_patterns
from trainer_box.publisher import Publisher

Build = Callable[[Path, Label], object]

ROW = ["embed", "BF16", [40, 30], 2]


def start() -> Weights:
    return {
        "embed": torch.arange(1200).to(torch.bfloat16).reshape(40, 30),
        "nan": from_patterns("F32", (4,), [0x7F800001, 0xFFC00002, 1 << 31, 1]),
        "none": torch.empty(0, 4, dtype=torch.bfloat16),
        "steps": torch.tensor(7),
    }


def next_weights() -> Weights:
    """The second version: another NaN payload, a sign of zero, a step."""
    weights = start()
    bits(weights["embed"])[[0, 300, 1199]] += 1
    bits(weights["nan"])[[0, 2]] = torch.tensor([0x7F800003, 0], dtype=torch.int32)
    weights["steps"] += 1
    return weights


@dataclass(frozen=True)
class Offer:
    """A version 1 that was put into the bucket as a publisher would."""

    bucket: MemoryBucket
    manifest: Manifest
    files: list[Path]


def offer(folder: Path, kind: Kind, *builds: Build) -> Offer:
    """Version 0 is whole, version 1 has one file per entry of `builds`."""
    bucket = MemoryBucket()
    base = Publisher(bucket, "r").publish(start().items())
    stated = to_text(fingerprint(next_weights()))
    on = (0, base.fingerprint) if kind == "delta" else (None, None)
    whole = layout.delta("r", 1) if kind == "delta" else layout.anchor("r", 1)
    names = [whole] if len(builds) == 1 else [whole.replace(".", f"-{n:05d}-of-00002.") for n in (1, 2)]
    files = []
    for name, build in zip(names, builds, strict=True):
        path = folder / name.rpartition("/")[2]
        build(path, Label("r", 1, stated, *on))
        bucket.write(name, path)
        files.append(DataFile(name, path.stat().st_size, content_hash(path)))
    manifest = Manifest("r", 1, kind, tuple(files), stated, 6, 1205, 1, now(), *on)
    announce(bucket, manifest.to_json())
    return Offer(bucket, manifest, [folder / name.rpartition("/")[2] for name in names])


def announce(bucket: MemoryBucket, raw: bytes) -> None:
    bucket.stored[layout.manifest("r", 1)] = raw
    pointer = Pointer("r", 1, layout.manifest("r", 1), xxhash.xxh3_128_hexdigest(raw))
    bucket.stored[layout.pointer("r")] = pointer.to_json()


def read(version: Offer) -> object:
    if version.manifest.kind == "anchor":
        return read_anchor(version.manifest, version.files)
    specs = {name: spec_of(name, tensor) for name, tensor in start().items()}
    return read_delta(version.manifest, version.files[0], specs)


def delta_file(path: Path, label: Label, content: Mapping[str, torch.Tensor], **metadata: str) -> None:
    stated = {**label.metadata(), "changed": "2", "total": "1205", **metadata}
    write(path, [(spec_of(name, tensor), tensor) for name, tensor in content.items()], stated)


def coo(table: Any = None, **changed: torch.Tensor | None) -> Build:
    """Two changes of `embed`; `changed` replaces tensors of the file, named with `_` for the dot, or drops them."""
    tensors = {"embed_indices": torch.tensor([3, 5], dtype=torch.int32), "embed_values": torch.ones(2).bfloat16()}
    given = {**tensors, **changed}
    kept = {name.replace("_", "."): tensor for name, tensor in given.items() if tensor is not None}
    rows = json.dumps(table or [ROW])
    return lambda path, label: delta_file(path, label, kept, encoding="coo", tensors=rows)


def packed(rows: Any = None, **changed: bytes | torch.Tensor | None) -> Build:
    """Two changes of `embed`, at 3 and 5; `changed` replaces streams (bytes: before compression) or drops them."""
    good = {"table": json.dumps(rows or [ROW]).encode(), "gaps": bytes([0, 3, 1]), "differences": bytes([0x22])}
    given: dict[str, Any] = {**good, **changed}
    tensors = {
        name: stream if isinstance(stream, torch.Tensor) else as_tensor(frame(stream))
        for name, stream in given.items()
        if stream is not None
    }
    return lambda path, label: delta_file(path, label, tensors, encoding="packed")


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def as_tensor(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def wide(*numbers: int) -> bytes:
    return np.array(numbers, dtype="<u8").view(np.uint8).reshape(-1, 8).T.tobytes()


def good(encoding: Encoding) -> Build:
    return lambda path, label: write_delta(path, label, changes_between(start(), next_weights()), 1205, encoding)


def whole(**changed: torch.Tensor) -> Build:
    return lambda path, label: write_anchor(path, label, {**next_weights(), **changed})


def part(*names: str) -> Build:
    return lambda path, label: write_anchor(path, label, {name: next_weights()[name] for name in names})


def edited(build: Build, edit: Callable[[bytes], bytes]) -> Build:
    def built(path: Path, label: Label) -> None:
        build(path, label)
        path.write_bytes(edit(path.read_bytes()))

    return built


def relabelled(build: Build, **metadata: str) -> Build:
    """The file under another header entry, with a checksum that holds."""

    def built(path: Path, label: Label) -> None:
        build(path, label)
        found = read_header(path)
        tensors = [(spec_of(name, tensor), tensor) for name, tensor in load(found).items()]
        write(path, tensors, {**found.metadata, **metadata})

    return built


def header(entries: Mapping[str, Any] | bytes, data: bytes = b"\0" * 4, length: int | None = None) -> Build:
    def built(path: Path, label: Label) -> None:
        metadata = {**label.metadata(), CHECKSUM: "0" * 32}
        text = entries if isinstance(entries, bytes) else json.dumps({"__metadata__": metadata, **entries}).encode()
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)

    return built
