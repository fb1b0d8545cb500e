"""Publishes the versions of one run: what changed since the newest whole version, or all of it.

Knows bits and files; nothing of training or of who follows. `diff` is what a training step has to wait for, `commit`
may run elsewhere; `publish` is both. What is held always is the newest version that is whole in the bucket: when the
outcome of a commit is unknown, it is read back before anything else is decided.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from shared import fingerprint
from shared.bits import spec_of
from shared.bucket import Bucket
from shared.changes import Change
from shared.errors import FencedError, SyncError
from shared.files import Encoding, Label
from shared.snapshot import Snapshot
from shared.types import LARGEST_VERSION, Base, Kind, Manifest, checked_run_id, now
from trainer_box.anchors import Housekeeping, Work
from trainer_box.detect import NamedTensors, copy_all, find_changes
from trainer_box.encode import Files, encode_anchor, encode_delta, label_of
from trainer_box.writer import OvertakenError, Writer

SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True)
class Diff:
    """A version to be: `changes` since `held`, or all `weights` where no whole version is held.

    `number_before` is what the publisher's next number was.
    """

    version: int
    held: Label | None
    changes: list[Change]
    weights: dict[str, torch.Tensor]
    seconds: float
    number_before: int


class Publisher:
    """The writer of one run. A run that exists already is continued with a new anchor; numbers are never reused.

    `serving_dtype` is what float tensors are cast to; None sends them as they come. `base` says where version 0 comes
    from; with its fingerprint, a version 0 that is just that has no files. Numbers up to `after` are spent, as a
    checkpoint may know and the bucket not. An anchor has at most `shard_bytes` bytes of elements per file. Raises
    BucketError when somebody else on this host writes the run.
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
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.run_id = checked_run_id(run_id)
        self._writer = Writer(bucket, run_id, model, _served_base(base or Base(), serving_dtype))
        self._housekeeping = Housekeeping(bucket, run_id, self._writer, shard_bytes)
        self._dtype = serving_dtype
        self._encoding: Encoding = encoding
        self._shard_bytes = shard_bytes
        self._held: Snapshot | None = None
        self._newest: Manifest | None = None  # whose weights are held
        self._unknown: tuple[Manifest, Diff] | None = None
        self._changing = threading.Lock()  # held while what is held is of no whole version, or has to stay as it is
        self._closed = False
        self._wants_anchor = False
        self._next_version = max(self._writer.spent, after) + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def next_version(self) -> int:
        return self._next_version

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of the last commit is known."""
        return self._unknown is None

    def publish(
        self, named_tensors: NamedTensors, trainer: Mapping[str, Any] | None = None, *, version: int | None = None
    ) -> Manifest:
        """Publish every parameter as (checkpoint name, tensor); returns when the version is whole in the bucket.

        `version` is the number of the sync point, by default one more than the last. Raises SyncError when the tensors
        do not fit the run, BucketError when the bucket fails; the next publish then covers what this one did not.
        """
        manifest = self.commit(self.diff(named_tensors, version=version), trainer)
        if work := self.housekeeping():
            work()
        return manifest

    def diff(self, named_tensors: NamedTensors, *, version: int | None = None) -> Diff:
        """What the next version changes; the tensors may be changed again once this returns."""
        number = self._number(version)
        self.settle()
        started = time.perf_counter()
        changes, weights, held = list[Change](), dict[str, torch.Tensor](), None
        if self._held is None:
            weights = copy_all(named_tensors, self._dtype)
        else:
            changes = find_changes(named_tensors, self._held.tensors, self._dtype)
            held = label_of(self.run_id, self._held)
        return Diff(number, held, changes, weights, time.perf_counter() - started, self._next_version)

    def commit(self, diff: Diff, trainer: Mapping[str, Any] | None = None) -> Manifest:
        """Write a diff as the newest version. Raises SyncError when another was written since the diff was taken."""
        self._number(diff.version)
        if diff.number_before != self._next_version or not self.is_settled:
            raise SyncError(f"the diff of version {diff.version} is outdated by a later publish; take it again")
        with self._changing, self._heeding_others():
            self._writer.hold_claim()
            self._next_version = diff.version + 1  # a number is spent even when what follows fails
            snapshot = self._applied(diff)
            try:
                manifest = self._write(diff, snapshot, trainer or {})
            except BaseException as error:
                if self.is_settled:
                    self._take_back(diff)
                if isinstance(error, OSError):
                    raise SyncError(f"version {diff.version} cannot be prepared on the local disk: {error}") from error
                raise
            self._finish(manifest)
        return manifest

    def settle(self) -> Manifest | None:
        """Find out what became of the last commit: its version when that is whole after all.

        Raises BucketError while it cannot be told, FencedError when somebody else writes the run.
        """
        if self._unknown is None:
            return None
        manifest, diff = self._unknown
        with self._changing:
            with self._heeding_others():
                is_whole = self._writer.is_whole(manifest)
            self._unknown = None
            if is_whole:
                self._finish(manifest)
                return manifest
            self._take_back(diff)
        return None

    def housekeeping(self) -> Work | None:
        """What is to be done beside the chain, on any thread: an extra anchor uploaded, old data deleted.

        Where an extra anchor is due, this writes it to the local disk first, and a commit waits until it has.
        """
        with self._changing:
            return self._housekeeping.work(self._newest, self._held) if self.is_settled else None

    def adopt(self, named_tensors: NamedTensors) -> Manifest | None:
        """Go on from the run's newest version when these are its weights, without writing; else None."""
        self._number(None)
        newest = self._writer.newest
        if newest is None or self._held is not None:
            return None
        snapshot = Snapshot(copy_all(named_tensors, self._dtype), newest.version)
        if fingerprint.to_text(snapshot.fingerprint) != newest.fingerprint:
            return None
        self._housekeeping.adopt(newest)
        self._held, self._newest = snapshot, newest
        return newest

    def rebase(self) -> None:
        """Make the next version an anchor."""
        self._wants_anchor = True

    def count(self, named_tensors: NamedTensors) -> str:
        """The fingerprint that these tensors have once they are cast to the serving dtype."""
        return fingerprint.to_text(fingerprint.fingerprint(copy_all(named_tensors, self._dtype)))

    def recount(self) -> str:
        """Count the fingerprint of the newest version anew. Raises IntegrityError when memory no longer holds it."""
        if self._held is None or not self.is_settled:
            raise SyncError("no version is known to be whole in the bucket, so there is nothing to recount")
        return self._held.recount()

    def close(self) -> None:
        """Give the run free, after a last recount."""
        closed, self._closed = self._closed, True
        try:
            if self._held is not None and self.is_settled and not closed:
                self.recount()
        finally:
            self._held = None
            self._writer.close()

    @contextmanager
    def _heeding_others(self) -> Iterator[None]:
        try:
            yield
        except FencedError:
            self._closed = True
            raise
        except OvertakenError:  # what is held is not what the run's newest version is
            self._next_version = max(self._next_version, self._writer.spent + 1)
            self.rebase()
            raise

    def _number(self, version: int | None) -> int:
        if self._closed:
            raise SyncError(f"the publisher of run {self.run_id!r} is closed")
        if version is not None and version < self._next_version:
            raise SyncError(f"version {version} of run {self.run_id!r} is spent, the next is {self._next_version}")
        number = self._next_version if version is None else version
        if number > LARGEST_VERSION:
            raise SyncError(f"version {number} of run {self.run_id!r} is beyond {LARGEST_VERSION}; start another run")
        return number

    # What is held

    def _applied(self, diff: Diff) -> Snapshot:
        if self._held is None:
            self._held = Snapshot(diff.weights, diff.version)
        else:
            self._held.commit(diff.version, diff.changes)
        return self._held

    def _take_back(self, diff: Diff) -> None:
        self._housekeeping.note_lost(diff.version)
        if diff.held is None or self._held is None:
            self._held = None
        else:
            self._held.undo(diff.held.version, diff.changes)

    def _finish(self, manifest: Manifest) -> None:
        """The version is whole."""
        self._newest = manifest
        self._wants_anchor = self._wants_anchor and manifest.kind != "anchor"
        self._housekeeping.note(manifest)

    # Writing

    def _write(self, diff: Diff, snapshot: Snapshot, trainer: Mapping[str, Any]) -> Manifest:
        started = time.perf_counter()
        with self._writer.folder() as folder:
            kind, files = self._encode(diff, snapshot, Path(folder))
            encoded = time.perf_counter()
            self._writer.upload(files)
        base = diff.held if kind == "delta" else None
        manifest = Manifest(
            run_id=self.run_id,
            version=diff.version,
            kind=kind,
            files=tuple(data for data, _ in files),
            fingerprint=fingerprint.to_text(snapshot.fingerprint),
            changed=sum(change.count for change in diff.changes) if diff.held else snapshot.total,
            total=snapshot.total,
            writer_epoch=self._writer.epoch,
            created_at=now(),
            base_version=base.version if base else None,
            base_fingerprint=base.fingerprint if base else None,
            seconds={"diff": diff.seconds, "encode": encoded - started, "upload": time.perf_counter() - encoded},
            trainer=dict(trainer),
        )
        raw = self._writer.readable(manifest)
        self._unknown = manifest, diff
        self._writer.announce(manifest, raw)
        self._unknown = None
        return manifest

    def _encode(self, diff: Diff, snapshot: Snapshot, folder: Path) -> tuple[Kind, Files]:
        if diff.held is not None and not self._wants_anchor:
            if files := encode_delta(diff.held, diff.changes, snapshot, self._encoding, folder):
                return "delta", files
        if diff.changes:
            snapshot.recount()
        if diff.version == 0 and fingerprint.to_text(snapshot.fingerprint) == self._writer.run.base.fingerprint:
            return "anchor", []
        return "anchor", encode_anchor(self.run_id, snapshot, self._shard_bytes, folder)


def _served_base(base: Base, dtype: torch.dtype | None) -> Base:
    return base if dtype is None else replace(base, dtype=spec_of("", torch.empty(0, dtype=dtype)).dtype)
