"""Publishes the versions of one run: data, read back, then the manifest, then the pointer.

Knows bits, files and the order of writes; nothing of training or of who follows. `diff` is what a training step has to
wait for, `commit` may run elsewhere; `publish` is both.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import torch
import xxhash

from shared import fingerprint, layout
from shared.bits import itemsize
from shared.bucket import Bucket
from shared.changes import Change
from shared.container import content_hash
from shared.errors import BucketError, ChainError, IntegrityError, SyncError
from shared.files import Encoding, Label, write_anchor, write_delta
from shared.reader import RunReader
from shared.snapshot import Snapshot
from shared.types import LARGEST_VERSION, Base, DataFile, Kind, Manifest, Pointer, Run, checked_run_id, now
from trainer_box.detect import NamedTensors, copy_all, find_changes


@dataclass(frozen=True)
class Diff:
    """A version to be: `changes` on the tensors that the publisher keeps, or `weights` when it keeps none yet.

    `base` is the newest whole version; None when there is none, or it is in doubt: then the version becomes an anchor.
    `number_before` is what the publisher's next number was.
    """

    version: int
    base: Label | None
    changes: list[Change]
    weights: dict[str, torch.Tensor]
    seconds: float
    number_before: int


class Publisher:
    """The writer of one run. A run that exists already is continued with a new anchor; numbers are never reused.

    `serving_dtype` is what float tensors are cast to; None sends them as they come. `base` says where version 0 comes
    from, for the record in `run.json`. Numbers up to `after` are spent, as a checkpoint may know and the bucket not.
    """

    def __init__(
        self,
        bucket: Bucket,
        run_id: str,
        *,
        model: str = "",
        base: Base | None = None,
        serving_dtype: torch.dtype | None = None,
        encoding: Encoding = "packed",
        after: int = -1,
    ) -> None:
        self.run_id = checked_run_id(run_id)
        self._bucket = bucket
        self._reader = RunReader(bucket, run_id)
        self._dtype = serving_dtype
        self._encoding: Encoding = encoding
        self._held: Snapshot | None = None
        self._whole = False  # whether what is held is the newest version in the bucket
        self._closed = False
        first, self._epoch = self._claim(model, base or Base())
        self._next_version = max(first, after + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def publish(
        self, named_tensors: NamedTensors, trainer: Mapping[str, Any] | None = None, *, version: int | None = None
    ) -> Manifest:
        """Publish every parameter as (checkpoint name, tensor); returns when the version is whole in the bucket.

        `version` is the number of the sync point, by default one more than the last. Raises SyncError when the tensors
        do not fit the run, BucketError when the bucket fails; the next publish then covers what this one did not.
        """
        return self.commit(self.diff(named_tensors, version=version), trainer)

    def diff(self, named_tensors: NamedTensors, *, version: int | None = None) -> Diff:
        """What the next version changes; the tensors may be changed again once this returns."""
        started = time.perf_counter()
        number = self._number(version)
        if self._held is None:
            weights = copy_all(named_tensors, self._dtype)
            return Diff(number, None, [], weights, time.perf_counter() - started, self._next_version)
        changes = find_changes(named_tensors, self._held.tensors, self._dtype)
        base = Label(self.run_id, self._held.version or 0, fingerprint.to_text(self._held.fingerprint))
        seconds = time.perf_counter() - started
        return Diff(number, base if self._whole else None, changes, {}, seconds, self._next_version)

    def commit(self, diff: Diff, trainer: Mapping[str, Any] | None = None) -> Manifest:
        """Write a diff as the newest version. Raises SyncError when another was written since the diff was taken."""
        self._number(diff.version)
        if diff.number_before != self._next_version:
            raise SyncError(f"the diff of version {diff.version} is outdated by a later publish; take it again")
        self._check_alone(diff.version)
        self._next_version = diff.version + 1  # a number is spent even when what follows fails
        if self._held is None or not self._whole:
            self._held = Snapshot(diff.weights if self._held is None else self._held.tensors)
        self._whole = False  # until the outcome is known, the bucket's newest version is not
        self._held.commit(diff.version, diff.changes)
        try:
            with TemporaryDirectory(prefix="publish-") as folder:
                manifest = self._write(diff, self._held, Path(folder), trainer or {})
        except OSError as error:
            raise SyncError(f"version {diff.version} cannot be prepared on this machine's disk: {error}") from error
        self._whole = True
        return manifest

    def recount(self) -> str:
        """Count the fingerprint of the newest version anew. Raises IntegrityError when memory no longer holds it."""
        if self._held is None or not self._whole:
            raise SyncError("no version is known to be whole in the bucket, so there is nothing to recount")
        return _recount(self._held)

    def close(self) -> None:
        """Give the run free, after a last recount."""
        closed, self._closed = self._closed, True
        if self._whole and not closed:
            self.recount()
        self._held = None

    def _claim(self, model: str, base: Base) -> tuple[int, int]:
        """Create the run, or find the next version and writer epoch of one that exists."""
        try:
            self._reader.run()
        except ChainError:
            run = Run(self.run_id, now(), model, base)
            self._bucket.write(layout.run_file(self.run_id), run.to_json())
            return 0, 1
        folders = (layout.manifests(self.run_id), layout.anchors(self.run_id), layout.deltas(self.run_id))
        numbers = [layout.version_of(path) for folder in folders for path in self._bucket.files(folder)]
        highest = max((number for number in numbers if number is not None), default=-1)
        try:
            epoch = self._reader.newest().writer_epoch
        except ChainError:
            epoch = 0
        return highest + 1, epoch + 1

    def _number(self, version: int | None) -> int:
        if self._closed:
            raise SyncError(f"the publisher of run {self.run_id!r} is closed")
        if version is not None and version < self._next_version:
            raise SyncError(f"version {version} of run {self.run_id!r} is spent, the next is {self._next_version}")
        number = self._next_version if version is None else version
        if number > LARGEST_VERSION:
            raise SyncError(f"version {number} of run {self.run_id!r} is beyond {LARGEST_VERSION}; start another run")
        return number

    def _check_alone(self, version: int) -> None:
        """Raises BucketError, and closes for good, when another publisher has written the run meanwhile."""
        try:
            newest = self._reader.newest()
        except ChainError:
            return
        if newest.writer_epoch > self._epoch or newest.version >= version:
            self._closed = True
            raise BucketError(
                f"run {self.run_id!r} is being written by another publisher: version {newest.version} is of writer "
                f"epoch {newest.writer_epoch}, this one has {self._epoch}; stop one of the two"
            )

    def _write(self, diff: Diff, snapshot: Snapshot, folder: Path, trainer: Mapping[str, Any]) -> Manifest:
        started = time.perf_counter()
        local, kind = self._encode(diff, snapshot, folder / "data.safetensors")
        encoded = time.perf_counter()
        place = layout.anchor if kind == "anchor" else layout.delta
        data = DataFile(place(self.run_id, diff.version), local.stat().st_size, content_hash(local))
        self._bucket.write(data.path, local)
        base = diff.base if kind == "delta" else None
        total = sum(tensor.numel() for tensor in snapshot.tensors.values())
        manifest = Manifest(
            run_id=self.run_id,
            version=diff.version,
            kind=kind,
            files=(data,),
            fingerprint=fingerprint.to_text(snapshot.fingerprint),
            changed=sum(change.count for change in diff.changes) if diff.base is not None else total,
            total=total,
            writer_epoch=self._epoch,
            created_at=now(),
            base_version=base.version if base else None,
            base_fingerprint=base.fingerprint if base else None,
            seconds={"diff": diff.seconds, "encode": encoded - started, "upload": time.perf_counter() - encoded},
            trainer=dict(trainer),
        )
        self._announce(manifest)
        return manifest

    def _encode(self, diff: Diff, snapshot: Snapshot, path: Path) -> tuple[Path, Kind]:
        """A delta, unless there is nothing to base it on or an anchor is smaller."""
        stated, delta = fingerprint.to_text(snapshot.fingerprint), path.with_name("delta.safetensors")
        if diff.base is not None:
            label = Label(self.run_id, diff.version, stated, diff.base.version, diff.base.fingerprint)
            total = sum(tensor.numel() for tensor in snapshot.tensors.values())
            write_delta(delta, label, diff.changes, total, self._encoding)
            plain = sum(spec.numel * itemsize(spec.dtype) for spec in snapshot.specs.values())
            if not diff.changes or delta.stat().st_size < plain:
                return delta, "delta"
        if diff.changes:
            _recount(snapshot)
        write_anchor(path, Label(self.run_id, diff.version, stated), snapshot.tensors)
        if delta.exists() and delta.stat().st_size < path.stat().st_size:
            return delta, "delta"
        return path, "anchor"

    def _announce(self, manifest: Manifest) -> None:
        raw = manifest.to_json()
        path = layout.manifest(self.run_id, manifest.version)
        Manifest.from_json(raw, path)  # what no reader would accept is not announced
        self._bucket.write(path, raw)
        pointer = Pointer(self.run_id, manifest.version, path, xxhash.xxh3_128_hexdigest(raw))
        self._bucket.write(layout.pointer(self.run_id), pointer.to_json(), replace=True)


def _recount(snapshot: Snapshot) -> str:
    counted = fingerprint.to_text(fingerprint.fingerprint(snapshot.tensors))
    if counted != (kept := fingerprint.to_text(snapshot.fingerprint)):
        raise IntegrityError(
            f"version {snapshot.version} recounts to {counted}, but {kept} was kept: memory is damaged"
        )
    return counted
