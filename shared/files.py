"""Anchor and delta files: what they say of themselves in their metadata, and how they are written and read.

Knows nothing of buckets or of which version may be applied where; readers compare the metadata with a manifest.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from shared import coo, packed, strict_json
from shared.bits import parse_spec, spec_of
from shared.changes import Change, Patch
from shared.container import Header, load, read_header, write
from shared.errors import IntegrityError
from shared.types import FORMAT, Kind, Manifest, TensorSpec

Encoding = Literal["packed", "coo"]
Table = Sequence[tuple[TensorSpec, int]]


@dataclass(frozen=True)
class Label:
    """What every file repeats of its manifest, so that it can be told from any other file."""

    run_id: str
    version: int
    fingerprint: str
    base_version: int | None = None
    base_fingerprint: str | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> "Label":
        return cls(
            manifest.run_id,
            manifest.version,
            manifest.fingerprint,
            manifest.base_version,
            manifest.base_fingerprint,
        )

    def metadata(self) -> dict[str, str]:
        kind: Kind = "anchor" if self.base_version is None else "delta"
        stated = {key: str(value) for key, value in vars(self).items() if value is not None}
        return {"kind": kind, "format": str(FORMAT), **stated}


def write_anchor(path: Path, label: Label, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write all `tensors` (on the CPU) as they are."""
    items = [(spec_of(name, tensor), tensor) for name, tensor in tensors.items()]
    total = sum(spec.numel for spec, _ in items)
    write(path, items, {**label.metadata(), "changed": str(total), "total": str(total)})


def write_delta(path: Path, label: Label, changes: Sequence[Change], total: int, encoding: Encoding) -> None:
    """Write `changes` (on the CPU) out of `total` elements of the model."""
    filled = [change for change in changes if change.count]
    changed = sum(change.count for change in filled)
    table = [[change.spec.name, change.spec.dtype, list(change.spec.shape), change.count] for change in filled]
    metadata = {
        **label.metadata(),
        "encoding": encoding,
        "changed": str(changed),
        "total": str(total),
        "tensors": json.dumps(table, separators=(",", ":"), ensure_ascii=False),
    }
    if encoding == "coo":
        metadata |= {"sparse": "True", "model_version": str(label.version), "changed_params": str(changed)}
        write(path, coo.encode(filled), metadata)
    else:
        streams = {name: _as_tensor(stream) for name, stream in packed.encode(filled).items()}
        write(path, [(spec_of(name, tensor), tensor) for name, tensor in streams.items()], metadata)


def open_checked(path: Path, label: Label) -> Header:
    """The header of a file that is undamaged and bears `label`. Raises IntegrityError otherwise."""
    header = read_header(path)
    if not header.checksum:
        raise IntegrityError(f"{path.name} carries no checksum; it was not written for this run")
    for key, wanted in label.metadata().items():
        if header.metadata.get(key) != wanted:
            raise IntegrityError(f"{path.name} says {key} {header.metadata.get(key)}, its manifest says {wanted}")
    return header


def read_patches(header: Header) -> list[Patch]:
    """The patches of a delta file, all indices within their tensors. Raises IntegrityError on malformed content."""
    table = read_table(header)
    tensors = load(header)
    if header.metadata.get("encoding") == "coo":
        return coo.decode(table, tensors)
    if header.metadata.get("encoding") != "packed":
        raise IntegrityError(f"{header.path.name} has unknown encoding {header.metadata.get('encoding')!r}")
    return packed.decode(table, {name: tensor.numpy().tobytes() for name, tensor in tensors.items()})


def read_table(header: Header) -> Table:
    """The changed tensors of a delta file, each with its number of changed elements."""
    try:
        rows = strict_json.parse(header.metadata["tensors"])
        table = [(parse_spec(name, dtype, shape), count) for name, dtype, shape, count in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{header.path.name} has no readable table of tensors: {error!r}") from error
    names = {spec.name for spec, count in table if type(count) is int and 0 < count <= spec.numel}
    if len(names) != len(table):
        raise IntegrityError(f"{header.path.name} lists a tensor twice, or with an impossible number of changes")
    return table


def _as_tensor(stream: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(stream), dtype=torch.uint8)
