"""Which files lead from what a receiver holds to the version it wants. Manifests come from the caller.

Knows versions, fingerprints and bytes; nothing of buckets, and not whether a file still is what its manifest says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.errors import ChainError, IntegrityError, SyncError
from shared.types import Manifest

Path = list[Manifest]

_ANCHORS = 2  # the newest, and the one before in case that one is damaged


@dataclass(frozen=True)
class Held:
    """A verified version that a receiver has. Equal numbers with another fingerprint are another version."""

    version: int
    fingerprint: str


class Versions(Protocol):
    """The manifests of a run. Both raise IntegrityError for a manifest that is damaged."""

    def manifest(self, version: int) -> Manifest:
        """Raises ChainError when there is none."""

    def anchor(self, version: int) -> Manifest | None:
        """An anchor of the same weights beside the version's own file."""


def find_paths(target: Manifest, held: Held | None, versions: Versions) -> list[Path]:
    """Every way worth trying, fewest bytes first: the versions to load in order, ending with `target`.

    Deltas on `held` where they connect, the newest whole anchor with its deltas, and the one before. `[[]]` when
    `target` is held. Raises ChainError when nothing leads there, IntegrityError when a damaged manifest is the reason.
    """
    if held == Held(target.version, target.fingerprint):
        return [[]]
    walk = _Walk(target, held, versions)
    reason = walk.run()
    paths = walk.connected + walk.anchored  # in this order: sorting keeps it where bytes are equal
    if not paths:
        sentence = "; ".join([f"nothing leads to version {target.version}: {reason}", *walk.passed_over])
        raise IntegrityError(sentence) if isinstance(reason, IntegrityError) else ChainError(sentence)
    return sorted(paths, key=_nbytes)


class _Walk:
    """Goes back from the target by base versions, and notes where a path may start."""

    def __init__(self, target: Manifest, held: Held | None, versions: Versions) -> None:
        self.connected: list[Path] = []
        self.anchored: list[Path] = []
        self.passed_over: list[str] = []
        self._held = held
        self._versions = versions
        self._step = target
        self._deltas: Path = []  # from the step to the target, newest first
        self._nbytes = 0  # of these

    def run(self) -> SyncError | None:
        """Why the walk went no further; None when there is no need to."""
        try:
            self._look()
            while not self._is_complete():
                self._back()
                self._look()
        except (ChainError, IntegrityError) as error:
            return error
        return None

    def _is_complete(self) -> bool:
        if len(self.anchored) < _ANCHORS:
            return False
        if self.connected or self._held is None or self._held.version >= self._step.version:
            return True
        return self._nbytes + self._step.nbytes > min(map(_nbytes, self.anchored))

    def _look(self) -> None:
        step, deltas = self._step, self._deltas[::-1]
        if self._held == Held(step.version, step.fingerprint):
            self.connected.append(deltas)
        for anchor in (step if step.kind == "anchor" and step.files else None, self._extra(step)):
            if anchor is not None and len(self.anchored) < _ANCHORS:
                self.anchored.append([anchor, *deltas])

    def _extra(self, step: Manifest) -> Manifest | None:
        """A damaged one is passed over: it never blocks the deltas."""
        try:
            return self._versions.anchor(step.version)
        except (ChainError, IntegrityError) as error:
            self.passed_over.append(str(error))
            return None

    def _back(self) -> None:
        """Raises ChainError or IntegrityError when there is nowhere to go."""
        step = self._step
        if step.kind == "anchor":
            raise ChainError(_end(step))
        if step.base_version is None:
            raise ChainError(f"delta {step.version} names no base version")
        base = self._versions.manifest(step.base_version)
        if base.fingerprint != step.base_fingerprint:
            raise ChainError(
                f"delta {step.version} is based on version {base.version} with fingerprint {step.base_fingerprint}, "
                f"but the bucket's version {base.version} has {base.fingerprint}"
            )
        self._deltas.append(step)
        self._nbytes += step.nbytes
        self._step = base


def _end(anchor: Manifest) -> str:
    if anchor.files:
        return f"version {anchor.version} is an anchor"
    return (
        f"version {anchor.version} is not in the bucket: load the run's base model (fingerprint {anchor.fingerprint}) "
        "and catch up from there"
    )


def _nbytes(path: Sequence[Manifest]) -> int:
    return sum(manifest.nbytes for manifest in path)
