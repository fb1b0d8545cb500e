"""Safetensors files that carry a checksum of themselves; written in a stream, checked before anything is read.

Knows the container only: names, dtypes, shapes, metadata. What the tensors mean is for the anchor and delta modules.
The metadata entry `xxh3_128` is over the header without that entry, as JSON with sorted keys and no spaces, then the
data.
"""

import json
import reprlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from shared import strict_json
from shared.bits import itemsize, parse_spec
from shared.errors import IntegrityError, SyncError
from shared.types import Json, TensorSpec

CHECKSUM = "xxh3_128"
_ENTRY = {"dtype", "shape", "data_offsets"}
_BLOCK = 1 << 22
_LONGEST_HEADER = 100_000_000  # as in the safetensors library


@dataclass(frozen=True)
class Header:
    """What a file says of itself. `checksum` is empty when the file carries none."""

    path: Path
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorSpec]
    checksum: str
    data_start: int


def write(path: Path, tensors: Iterable[tuple[TensorSpec, torch.Tensor]], metadata: Mapping[str, str]) -> None:
    """Write CPU tensors under their specs, one at a time. Raises OSError when the disk does not take them."""
    items = sorted(tensors, key=lambda item: -itemsize(item[0].dtype))  # so that every tensor lies aligned
    entries: Json = {"__metadata__": dict(metadata)}
    offset = 0
    for spec, _ in items:
        if spec.name in entries:
            raise SyncError(f"a file cannot hold tensor {spec.name!r}: it has an entry of that name already")
        end = offset + spec.numel * itemsize(spec.dtype)
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    hasher = xxhash.xxh3_128(_canonical(entries))
    with path.open("wb") as file:
        file.write(_header_bytes(entries, "0" * 32))
        for _, tensor in items:
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
            hasher.update(data)
            file.write(data)
        file.seek(0)
        file.write(_header_bytes(entries, hasher.hexdigest()))


def read_header(path: Path, *, verify: bool = True) -> Header:
    """Parse the header; with `verify`, also compare the checksum with header and data.

    Raises IntegrityError when the file is truncated, does not parse, or does not match its own checksum.
    """
    with path.open("rb") as file:
        entries, data_start = _parse(file, path)
        metadata = entries["__metadata__"]
        specs = {name: _spec(name, entry, path) for name, entry in entries.items() if name != "__metadata__"}
        _check_extent(path, entries, data_start)
        stated = metadata.pop(CHECKSUM, "")
        if verify and stated:
            found = _checksum(file, entries, data_start)
            if found != stated:
                raise IntegrityError(f"{path.name} is damaged: its checksum says {stated}, its content gives {found}")
    return Header(path, metadata, specs, stated, data_start)


def load(header: Header, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a checked file, on the CPU: all, or those of some names."""
    wanted = header.tensors if names is None else names
    try:
        with safe_open(header.path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in wanted}  # else they stay views of the file
    except SafetensorError as error:
        raise IntegrityError(f"{header.path.name} cannot be read as safetensors: {error}") from error


def content_hash(path: Path) -> str:
    """xxh3_128 over all bytes of the file, 32 hexadecimal digits."""
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
    return hasher.hexdigest()


def _canonical(entries: Json) -> bytes:
    return json.dumps(entries, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _header_bytes(entries: Json, checksum: str) -> bytes:
    full = {**entries, "__metadata__": {**entries["__metadata__"], CHECKSUM: checksum}}
    text = json.dumps(full, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _parse(file: BinaryIO, path: Path) -> tuple[Json, int]:
    start, size = file.read(8), path.stat().st_size
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 0 < length <= min(_LONGEST_HEADER, size - 8):
        raise IntegrityError(
            f"{path.name} is truncated or no safetensors file: it has {size} bytes, its first eight announce a header "
            f"of {length} bytes"
        )
    text = file.read(length)
    try:
        entries = strict_json.parse(text)
    except ValueError as error:
        raise IntegrityError(f"{path.name} has a header that is not JSON: {error}") from error
    if not isinstance(entries, dict) or not text.startswith(b"{") or not text.rstrip(b" ").endswith(b"}"):
        raise IntegrityError(f"{path.name} has a header that is not a JSON object, padded with spaces")
    metadata = entries.setdefault("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise IntegrityError(f"{path.name} has metadata that is not an object of texts")
    return entries, 8 + length


def _spec(name: str, entry: Any, path: Path) -> TensorSpec:
    try:
        if not isinstance(entry, dict) or entry.keys() != _ENTRY:
            raise ValueError(f"it has to have {', '.join(sorted(_ENTRY))}")
        spec = parse_spec(name, entry["dtype"], entry["shape"])
        begin, end = entry["data_offsets"]
        if type(begin) is not int or type(end) is not int or end - begin != spec.numel * itemsize(spec.dtype):
            raise ValueError(f"data offsets for {spec.dtype} of shape {spec.shape} are {reprlib.repr([begin, end])}")
    except (TypeError, ValueError) as error:
        raise IntegrityError(f"{path.name} describes tensor {name!r} wrongly: {error}") from error
    return spec


def _check_extent(path: Path, entries: Json, data_start: int) -> None:
    expected, found = 0, path.stat().st_size - data_start
    places = [(*entry["data_offsets"], name) for name, entry in entries.items() if name != "__metadata__"]
    for begin, end, name in sorted(places):
        if begin != expected:
            raise IntegrityError(
                f"{path.name} has tensor {name!r} begin at data byte {begin} where {expected} was expected; tensors "
                "neither overlap nor leave gaps"
            )
        expected = end
    if expected != found:
        raise IntegrityError(f"{path.name} has {found} bytes of data, its header describes {expected}")


def _checksum(file: BinaryIO, entries: Json, data_start: int) -> str:
    hasher = xxhash.xxh3_128(_canonical(entries))
    file.seek(data_start)
    while block := file.read(_BLOCK):
        hasher.update(block)
    return hasher.hexdigest()
