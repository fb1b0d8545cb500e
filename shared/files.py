"""Anchor and delta files: what they say of themselves in their metadata, and how they are written and read.

Knows nothing of buckets or of which version may be applied where; readers compare the metadata with a manifest.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from shared import coo, frames, packed, table
from shared.bits import spec_of
from shared.changes import Change, Patch
from shared.container import Header, load, read_header, write
from shared.errors import IntegrityError
from shared.table import Table
from shared.types import FORMAT, Kind, Manifest, TensorSpec

Encoding = Literal["packed", "coo"]

TABLE = "table"  # the stream of a packed file that holds its table
LONGEST_TABLE = 32_000_000  # bytes: of some 300,000 tensors


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
    text = table.to_text([(change.spec, change.count) for change in filled])
    metadata = {
        **label.metadata(),
        "encoding": encoding,
        "changed": str(changed),
        "total": str(total),
    }
    if encoding == "coo":
        public = {"sparse": "True", "model_version": str(label.version), "changed_params": str(changed)}
        write(path, coo.encode(filled), {**metadata, "tensors": text, **public})
    else:
        encoded = {TABLE: frames.fold(text.encode()), **packed.encode(filled)}
        streams = {name: _as_tensor(stream) for name, stream in encoded.items()}
        write(path, [(spec_of(name, tensor), tensor) for name, tensor in streams.items()], metadata)


def open_checked(path: Path, label: Label) -> Header:
    """The header of a file that is undamaged and bears `label`. Raises IntegrityError otherwise."""
    header = read_header(path)
    if not header.checksum:
        raise IntegrityError(f"{path.name} carries no checksum; it was not written for this run")
    if (found := header.metadata.get("format")) != str(FORMAT):  # first: in another one the rest may be anything
        raise IntegrityError(f"{path.name} has format {found}, this code reads format {FORMAT}; update it")
    for key, wanted in label.metadata().items():
        if header.metadata.get(key) != wanted:
            raise IntegrityError(f"{path.name} says {key} {header.metadata.get(key)}, its manifest says {wanted}")
    return header


def read_delta(manifest: Manifest, path: Path, held: Mapping[str, TensorSpec]) -> list[Patch]:
    """The patches of a delta, which fit the tensors that are `held`; takes memory for what changed, whatever it says.

    Raises IntegrityError unless the file is undamaged, is the manifest's, and changes only elements of these.
    """
    header = open_checked(path, Label.of(manifest))
    changed = read_table(header, min(LONGEST_TABLE, table.longest(held.values())))
    for spec, _ in changed:  # before decoding: what a file may unfold to is bounded by what is held
        if (known := held.get(spec.name)) != spec:
            raise IntegrityError(
                f"{path.name} changes tensor {spec.name!r} of {_described(spec)}, "
                f"what is held is {_described(known) if known else 'no tensor of that name'}"
            )
    return _patches(header, changed)


def read_anchor(manifest: Manifest, paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """All tensors of an anchor, from all its files. Whether they have its fingerprint is for the caller to count.

    Raises IntegrityError unless each file is undamaged and that of the manifest, and each tensor is in one of them.
    """
    tensors: dict[str, torch.Tensor] = {}
    places: dict[str, str] = {}
    for path in paths:
        for name, tensor in load(open_checked(path, Label.of(manifest))).items():
            if name in tensors:
                raise IntegrityError(f"tensor {name!r} comes twice: in {places[name]} and in {path.name}")
            tensors[name], places[name] = tensor, path.name
    return tensors


def read_patches(header: Header) -> list[Patch]:
    """The patches of a delta file, all indices within their tensors. Raises IntegrityError on malformed content."""
    return _patches(header, read_table(header))


def _patches(header: Header, table: Table) -> list[Patch]:
    tensors = load(header)
    with _naming(header):
        if _encoding(header) == "coo":
            return coo.decode(table, tensors)
        streams = {name: _as_stream(name, tensor) for name, tensor in tensors.items()}
        return packed.decode(table, {name: stream for name, stream in streams.items() if name != TABLE})


def read_table(header: Header, longest: int = LONGEST_TABLE) -> Table:
    """The changed tensors of a delta file, each with its number of changed elements.

    Raises IntegrityError when there is none of at most `longest` bytes.
    """
    with _naming(header):
        if _encoding(header) == "coo":
            text = header.metadata.get("tensors", "").encode()
            if len(text) > longest:
                raise IntegrityError(f"its table has {len(text)} bytes, at most {longest} are read")
            return table.parse(text)
        found = load(header, [TABLE]) if TABLE in header.tensors else {}
        streams = {name: _as_stream(name, tensor) for name, tensor in found.items()}
        return table.parse(frames.unfold_text(streams, TABLE, longest))


def _encoding(header: Header) -> str:
    encoding = header.metadata.get("encoding")
    if encoding is None or encoding not in get_args(Encoding):
        raise IntegrityError(f"encoding {encoding!r} is not known, known are {', '.join(get_args(Encoding))}")
    return encoding


@contextmanager
def _naming(header: Header) -> Iterator[None]:
    """Errors within say which file they are about."""
    try:
        yield
    except IntegrityError as error:
        raise IntegrityError(f"{header.path.name}: {error}") from error


def _described(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


def _as_tensor(stream: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(stream), dtype=torch.uint8)


def _as_stream(name: str, tensor: torch.Tensor) -> bytes:
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        found = _described(spec_of(name, tensor))
        raise IntegrityError(f"stream {name!r} is {found}, a stream is U8 of one dimension")
    return tensor.numpy().tobytes()
