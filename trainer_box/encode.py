"""The data files of a version on this machine's disk: a delta when that is smaller, else an anchor in shards.

Knows files and their sizes; nothing of the bucket they go to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shared import fingerprint, layout
from shared.bits import itemsize
from shared.changes import Change
from shared.container import content_hash
from shared.files import Encoding, Label, write_anchor, write_delta
from shared.snapshot import Snapshot
from shared.types import DataFile, TensorSpec

Files = list[tuple[DataFile, Path]]


def label_of(run_id: str, snapshot: Snapshot) -> Label:
    return Label(run_id, snapshot.version or 0, fingerprint.to_text(snapshot.fingerprint))


def plain_bytes(snapshot: Snapshot) -> int:
    """Bytes of the elements alone, which is about what an anchor has."""
    return sum(_nbytes(spec) for spec in snapshot.specs.values())


def encode_delta(
    base: Label, changes: Sequence[Change], snapshot: Snapshot, encoding: Encoding, folder: Path
) -> Files:
    """The delta from `base` to `snapshot`. Empty when an anchor is smaller; a step without changes has one."""
    stated = replace(label_of(base.run_id, snapshot), base_version=base.version, base_fingerprint=base.fingerprint)
    path = folder / "delta.safetensors"
    write_delta(path, stated, changes, snapshot.total, encoding)
    if changes and path.stat().st_size >= plain_bytes(snapshot):
        anchor = encode_anchor(base.run_id, snapshot, plain_bytes(snapshot), folder)
        if path.stat().st_size >= sum(data.nbytes for data, _ in anchor):
            return []
    return [_described(layout.delta(stated.run_id, stated.version), path)]


def encode_anchor(run_id: str, snapshot: Snapshot, shard_bytes: int, folder: Path) -> Files:
    """All tensors, with at most `shard_bytes` bytes of elements in a file; a larger tensor has one of its own."""
    label, shards = label_of(run_id, snapshot), _shards(snapshot.specs, shard_bytes)
    files = []
    for number, names in enumerate(shards, start=1):
        path = folder / f"anchor-{number}.safetensors"
        write_anchor(path, label, {name: snapshot.tensors[name] for name in names})
        files.append(_described(layout.anchor(run_id, label.version, number, len(shards)), path))
    return files


def _shards(specs: Mapping[str, TensorSpec], limit: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, spec in specs.items():
        if shards[-1] and filled + _nbytes(spec) > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += _nbytes(spec)
    return shards


def _described(path: str, local: Path) -> tuple[DataFile, Path]:
    return DataFile(path, local.stat().st_size, content_hash(local)), local


def _nbytes(spec: TensorSpec) -> int:
    return spec.numel * itemsize(spec.dtype)
