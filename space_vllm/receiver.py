"""A worker's side of a sync: it keeps the verified wire weights, stages the next version on a thread, and applies it.

Knows nothing of HTTP, buckets or pauses. Whoever calls it decides when, and calls one thing at a time.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from shared import fingerprint
from shared.changes import Change
from shared.errors import SyncError
from shared.snapshot import Snapshot
from shared.types import Manifest
from space_vllm.placement import Placement

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Progress:
    """How far staging is. `error_kind` is the name of the error's class, `fingerprint` of what is staged."""

    state: Literal["idle", "working", "ready", "failed"]
    error: str = ""
    error_kind: str = ""
    fingerprint: str = ""

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """What an apply led to. With an `error` the old version is live again, unless `dirty`: then nobody knows."""

    fingerprint: str
    apply_ms: float
    error: str = ""
    dirty: bool = False

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Staged:
    """A version to be: `changes` on the held snapshot, or with an anchor a `snapshot` of its own."""

    version: int
    fingerprint: str
    changes: Sequence[Change]
    snapshot: Snapshot | None


class Receiver:
    """`stage` and `join` return at once and are followed with `poll`; a failed `stage` leaves nothing behind."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._held: Snapshot | None = None
        self._thread = ThreadPoolExecutor(1, "stage")
        self._work: Future[_Staged] | None = None

    def join(self, base: Callable[[], Weights]) -> None:
        """Count the base model's weights, which are live already, and hold them as version 0."""
        self._work = self._thread.submit(self._count, base)

    def stage(self, manifest: Manifest, files: Sequence[Path]) -> None:
        self._work = self._thread.submit(self._decode, manifest, files)

    def poll(self) -> Progress:
        if self._work is None:
            return Progress("idle")
        if not self._work.done():
            return Progress("working")
        if (error := self._work.exception()) is not None:
            sentence = str(error) if isinstance(error, SyncError) else f"staging failed: {error!r}"
            return Progress("failed", sentence, type(error).__name__)
        return Progress("ready", fingerprint=self._work.result().fingerprint)

    def discard(self) -> None:
        if self._work is not None:
            self._work.cancel()
        self._work = None

    def apply(self) -> Outcome:
        """Place what is staged, compare it with the live model, hold it. Raises SyncError when nothing is ready."""
        if self._work is None or not self._work.done() or self._work.exception() is not None:
            raise SyncError("no version is staged, so none can be applied")
        staged, self._work = self._work.result(), None
        started = time.perf_counter()
        before = self._held
        error, dirty = self._advance(staged, before)
        held = fingerprint.to_text(self._held.fingerprint) if self._held is not None else ""
        return Outcome(held, round(1000 * (time.perf_counter() - started), 3), error, dirty)

    def _count(self, base: Callable[[], Weights]) -> _Staged:
        self._held = Snapshot(base(), version=0)
        return _Staged(0, fingerprint.to_text(self._held.fingerprint), [], self._held)

    def _decode(self, manifest: Manifest, files: Sequence[Path]) -> _Staged:
        if manifest.kind == "anchor":
            return _Staged(manifest.version, manifest.fingerprint, [], Snapshot.from_anchor(manifest, files))
        if self._held is None:
            raise SyncError(f"delta {manifest.version} was sent before any weights are held; send an anchor")
        return _Staged(manifest.version, manifest.fingerprint, self._held.stage(manifest, files[0]), None)

    def _advance(self, staged: _Staged, held: Snapshot | None) -> tuple[str, bool]:
        """The error, and whether the live model is left in doubt."""
        snapshot = staged.snapshot or held
        assert snapshot is not None
        version = snapshot.version
        snapshot.commit(staged.version, staged.changes)
        try:
            self._place(staged, snapshot)
        except Exception as error:  # a loader raises anything, and part of the values may be placed
            snapshot.undo(version, staged.changes)
            return self._put_back(f"version {staged.version} was not placed: {error!r}", held)
        self._held = snapshot
        return "", False

    def _place(self, staged: _Staged, snapshot: Snapshot) -> None:
        if staged.snapshot is not None:
            self._check_coverage(staged.snapshot)
            self._placement.place_all(snapshot.tensors)
            self._compare(snapshot.tensors)
        elif staged.changes:
            self._placement.place_changes(staged.changes)
            self._compare({change.spec.name: snapshot.tensors[change.spec.name] for change in staged.changes})

    def _check_coverage(self, snapshot: Snapshot) -> None:
        """A part of a fused parameter that an anchor lacks would keep its old values, unseen by vLLM's loader."""
        held = self._held.tensors if self._held is not None else {}
        absent = {name: tensor for name, tensor in held.items() if name not in snapshot.tensors}
        if live := self._placement.reached(absent):
            raise SyncError(f"{len(live)} live tensors are missing, such as {live[0]!r}; publish every parameter")

    def _compare(self, tensors: Weights) -> None:
        if names := self._placement.differing(tensors):
            raise SyncError(f"{len(names)} tensors differ in the live model, such as {names[0]!r}")

    def _put_back(self, reason: str, held: Snapshot | None) -> tuple[str, bool]:
        if held is None:
            return f"{reason}; there is no earlier version to put back", True
        try:
            self._placement.place_all(held.tensors)
            self._compare(held.tensors)
        except Exception as error:  # the same loader, which just failed
            return f"{reason}; version {held.version} could not be put back: {error!r}", True
        return f"{reason}; version {held.version} was put back", False
