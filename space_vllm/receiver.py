"""A worker's side of a sync: stage a version on a thread, then place, verify or undo it when told to.

The live model is the only copy of the weights; what is known of it are its terms of the fingerprint. Knows nothing of
HTTP, buckets or pauses: whoever calls it decides when, and calls one thing at a time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared import fingerprint
from shared.bits import bits, spec_of
from shared.changes import Change
from shared.errors import ChainError, IntegrityError, SyncError
from shared.files import read_anchor, read_delta
from shared.types import Manifest, TensorSpec
from space_vllm.audit import Audit
from space_vllm.in_parallel import in_parallel
from space_vllm.outcomes import Audited, Placed, Progress, Verified
from space_vllm.placement import LiveModel, Places, Weights


@dataclass(frozen=True)
class Version:
    """Weights that are live or about to be. `terms` are their terms of the fingerprint, by tensor."""

    number: int
    specs: Mapping[str, TensorSpec]
    terms: Mapping[str, int]
    places: Places

    @property
    def fingerprint(self) -> str:
        return fingerprint.to_text(sum(self.terms.values()))


@dataclass(frozen=True)
class Staged:
    """A version with what makes it live: `changes` on the version before, or `tensors` and a `backup` of what is."""

    version: Version
    changes: Sequence[Change] = ()
    tensors: Weights | None = None
    backup: Any = None


class Receiver:
    """`join`, `stage` and `stage_base` return at once and are followed with `poll`. A failed one leaves nothing."""

    def __init__(self, model: LiveModel) -> None:
        self._model = model
        self._live: Version | None = None  # None while nobody knows
        self._placed: Staged | None = None  # between apply and a verify that tells what is live
        self._undone = False
        self._thread = ThreadPoolExecutor(1, "stage")
        self._work: Future[Staged | None] | None = None
        self._audit: Audit | None = None

    def join(self) -> None:
        """Recount the base model, which is live already, as version 0."""
        self._submit(self._join)

    def stage(self, manifest: Manifest, files: Sequence[Path]) -> None:
        self._submit(lambda: self._decode(manifest, files))

    def stage_base(self) -> None:
        """Stage the base model's own files, as version 0."""
        self._submit(lambda: self._whole(0, self._model.base()))

    def poll(self) -> Progress:
        if self._work is None:
            return Progress("idle")
        if not self._work.done():
            return Progress("working")
        if (error := self._work.exception()) is not None:
            sentence = str(error) if isinstance(error, SyncError) else f"staging failed: {error!r}"
            return Progress("failed", sentence, type(error).__name__)
        staged = self._work.result()
        version = staged.version if staged is not None else self._live
        return Progress("ready", fingerprint=version.fingerprint if version else "", places=self._summary(version))

    def discard(self) -> None:
        if self._work is not None:
            self._work.cancel()
        self._work = None

    def apply(self) -> Placed:
        """Place what is staged. Whether that went well is for `verify` to say; with an `error` it surely did not."""
        if self._work is None or not self._work.done() or self._work.exception() is not None:
            raise SyncError("no version is staged, so none can be applied")
        staged, self._work = self._work.result(), None
        if staged is None:
            raise SyncError("the base model is live already")
        self._pause_audit()
        self._placed, self._undone = staged, False
        return self._timed(lambda: self._place(staged))

    def undo(self) -> Placed:
        """Put back what `apply` replaced."""
        staged = self._placed
        if staged is None or self._live is None:
            return Placed("there is no earlier version to put back")
        self._undone = True
        return self._timed(lambda: self._put_back(staged))

    def verify(self) -> Verified:
        """The fingerprint of what is live, read back. Once it is the expected one, that version is held."""
        staged = self._placed
        if staged is None:
            raise SyncError("nothing was placed, so there is nothing to verify")
        expected = self._live if self._undone and self._live is not None else staged.version
        try:
            expected.places.check()
            found = self._found(expected, staged)
        except Exception as error:  # the live model is read where a loader may have written anything
            return Verified(error=f"version {expected.number} cannot be read back: {error!r}")
        if found == expected.fingerprint:
            self._settle(expected, staged)
        return Verified(found)

    def lose(self) -> None:
        """Nobody knows what is live: only whole weights can follow."""
        self._pause_audit()
        self._live = self._placed = self._audit = None
        self.discard()

    def audit(self, anew: bool = False) -> Audited:
        """Go on recounting the live model, or start to, and say how far it is. A mismatch loses the version.

        With `anew` nothing that was counted before is relied on.
        """
        if self._live is None:
            return Audited("done", wrong=("no version is known to be live",))
        if anew:
            self._pause_audit()
        if anew or self._audit is None:
            self._audit = Audit(self._live.places, self._live.specs)
        if not self._audit.is_done:
            self._audit.proceed(self._thread)
            return Audited("working")
        audit, self._audit = self._audit, None
        wrong = tuple(audit.differing(self._live.terms))
        if wrong:
            self._model.distrust()
            self.lose()
        return Audited("done", wrong=wrong)

    # On the thread

    def _join(self) -> None:
        staged = self._whole(0, self._model.base(), backup=False)
        version = staged.version
        version.places.adopt(staged.tensors or {})
        wrong = [name for name, term in _count(version).items() if term != version.terms[name]]
        if wrong:
            raise IntegrityError(
                f"{len(wrong)} tensors of the live model, such as {wrong[0]!r}, are not what their files hold: vLLM "
                "changes them in a way that cannot be followed, or memory is damaged"
            )
        version.places.check()
        version.places.rehearse()
        self._live = version

    def _decode(self, manifest: Manifest, files: Sequence[Path]) -> Staged:
        if manifest.kind == "anchor":
            staged = self._whole(manifest.version, read_anchor(manifest, files), backup=self._live is not None)
            _check_fingerprint(manifest, staged.version)
            return staged
        live = self._live
        if live is None or (manifest.base_version, manifest.base_fingerprint) != (live.number, live.fingerprint):
            held = f"version {live.number} ({live.fingerprint})" if live else "no known version"
            raise ChainError(
                f"delta {manifest.version} is based on version {manifest.base_version} "
                f"({manifest.base_fingerprint}), but {held} is live"
            )
        patches = read_delta(manifest, files[0], live.specs)
        changes = [patch.onto(live.places.read(patch.spec, patch.indices)) for patch in patches]
        terms = {**live.terms}
        for change in changes:
            live.places.admit(change.spec, change.new)
            terms[change.spec.name] += fingerprint.change(change.spec, change.indices, change.old, change.new)
        staged = Staged(Version(manifest.version, live.specs, terms, live.places), changes)
        _check_fingerprint(manifest, staged.version)
        return staged

    def _whole(self, number: int, tensors: Weights, backup: bool = True) -> Staged:
        specs = {name: spec_of(name, tensor) for name, tensor in tensors.items()}
        terms = {name: fingerprint.tensor(spec, bits(tensors[name])) for name, spec in specs.items()}
        version = Version(number, specs, terms, self._model.find(tensors))
        for name, spec in specs.items():
            version.places.admit(spec, bits(tensors[name]))
        return Staged(version, tensors=tensors, backup=self._model.backup() if backup else None)

    # In the pause

    def _place(self, staged: Staged) -> None:
        if staged.tensors is not None:
            staged.version.places.load(staged.tensors)
        else:
            staged.version.places.write(staged.changes)

    def _put_back(self, staged: Staged) -> None:
        if staged.tensors is not None:
            self._model.restore(staged.backup)
            if self._live is not None:
                self._live.places.rehearse()  # makes anew what is derived from weights and in no backup
        else:
            staged.version.places.undo(staged.changes)

    def _found(self, expected: Version, staged: Staged) -> str:
        """The fingerprint of the live model: of what a delta changed, after an anchor of all of it.

        Of all of it after an undo too: what went wrong may have written anywhere. Bits that are read back as they were
        to be have the terms that staging counted, and only others are counted in the pause.
        """
        if staged.tensors is not None or self._undone:
            return fingerprint.to_text(sum(_count(expected).values()))

        def gain(change: Change) -> int:
            found = expected.places.read(change.spec, change.indices)
            is_right = torch.equal(found, change.new)
            return 0 if is_right else fingerprint.change(change.spec, change.indices, change.new, found)

        return fingerprint.to_text(sum(expected.terms.values()) + sum(in_parallel(gain, staged.changes)))

    def _settle(self, version: Version, staged: Staged) -> None:
        self._live, self._placed = version, None
        if staged.tensors is not None:
            self._audit = None  # all of it was counted just now
        elif self._audit is not None and not self._undone:
            self._audit.follow(staged.changes)

    def _pause_audit(self) -> None:
        if self._audit is not None:
            self._audit.stop()

    def _submit(self, work: Callable[[], Staged | None]) -> None:
        self._pause_audit()
        self._work = self._thread.submit(work)

    def _summary(self, version: Version | None) -> dict[str, int]:
        return version.places.summary() if version is not None else {}

    @staticmethod
    def _timed(action: Callable[[], None]) -> Placed:
        started = time.perf_counter()
        error = ""
        try:
            action()
        except Exception as problem:  # a loader raises anything, and part of the values may be placed
            error = repr(problem)
        return Placed(error, round(1000 * (time.perf_counter() - started), 3))


def _count(version: Version) -> dict[str, int]:
    counted = {name: version.places.count(spec, _never) for name, spec in version.specs.items()}
    return {name: term for name, term in counted.items() if term is not None}


def _never() -> bool:
    return False


def _check_fingerprint(manifest: Manifest, version: Version) -> None:
    if version.fingerprint != manifest.fingerprint:
        raise IntegrityError(
            f"{manifest.kind} {manifest.version} leads to fingerprint {version.fingerprint}, its manifest says "
            f"{manifest.fingerprint}"
        )
