"""The reference receiver: brings a dict of tensors to the newest version of a run, verified, without any engine."""

import torch

from shared import fingerprint
from shared.base_model import load_base
from shared.bits import spec_of
from shared.bucket import Bucket
from shared.chain import Held, find_paths
from shared.changes import Change
from shared.errors import ChainError, IntegrityError, SyncError
from shared.reader import RunReader, newest_run
from shared.snapshot import Snapshot
from shared.types import Manifest, Run, TensorSpec

Weights = dict[str, torch.Tensor]


class Follower:
    """Follows one run, or with `run_id=None` whichever run of the bucket was created last."""

    def __init__(self, bucket: Bucket, run_id: str | None = None) -> None:
        self._bucket = bucket
        self._run_id = run_id
        self._run: Run | None = None
        self._reader: RunReader | None = None
        self._newest: Manifest | None = None

    def catch_up(self, weights: Weights) -> Manifest:
        """Patch `weights` (checkpoint name to tensor, in place; empty: filled) to the newest version.

        What is held is counted anew and found by its fingerprint; unknown weights start from an anchor. Raises
        ChainError when there is no run or no path, IntegrityError on damaged content, BucketError when the bucket
        fails, SyncError when the tensors are not those of the run. On any error `weights` is as it was.
        """
        reader = self._current_reader()
        target = self._target(reader)
        _refuse_unwritable(weights)
        snapshot = Snapshot(weights)
        held = _identify(reader, fingerprint.to_text(snapshot.fingerprint), target) if weights else None
        if held is not None and held.version > target.version:
            return reader.manifest(held.version)  # never back within a run, even when the pointer is behind
        snapshot.version = held.version if held is not None else None
        _follow_first(_paths(target, held, reader), reader, snapshot)
        return target

    def _current_reader(self) -> RunReader:
        """A run that was begun anew under the same id is another one."""
        run = RunReader(self._bucket, self._run_id).run() if self._run_id else newest_run(self._bucket)
        if self._reader is None or self._run != run:
            self._run, self._reader, self._newest = run, RunReader(self._bucket, run.run_id), None
        return self._reader

    def _target(self, reader: RunReader) -> Manifest:
        """The newest version, or the newest that was seen when the pointer is behind that."""
        found, known = reader.newest(), self._newest
        if known is None or known.version < found.version:
            self._newest = known = found
        return known


def _identify(reader: RunReader, found: str, target: Manifest) -> Held | None:
    """The newest version with this fingerprint; None for weights of no version that can be read."""
    for version in reversed(reader.versions()):
        try:
            manifest = reader.manifest(version)
        except (ChainError, IntegrityError):
            if version > target.version:  # it may be what is held, and a receiver never goes back
                raise
            continue
        if manifest.fingerprint == found:
            return Held(version, found)
    return None


def _paths(target: Manifest, held: Held | None, reader: RunReader) -> list[list[Manifest]]:
    """When nothing in the bucket leads to the target, from the run's base model, which may be at hand elsewhere."""
    try:
        return find_paths(target, held, reader)
    except ChainError:
        base = reader.manifest(reader.versions()[0])
        if base.files or base.kind != "anchor":
            raise
        paths = find_paths(target, Held(base.version, base.fingerprint), reader)
        return [[base, *path] for path in paths if not path or path[0].kind == "delta"]


def _follow_first(paths: list[list[Manifest]], reader: RunReader, snapshot: Snapshot) -> None:
    """The first path that leads to its end; when none does, the first one's error."""
    errors: list[SyncError] = []
    for path in paths:
        try:
            return _follow(path, reader, snapshot)
        except (IntegrityError, ChainError) as error:
            errors.append(error.with_traceback(None))  # which would keep the weights that were built alive
    raise errors[0]


def _follow(path: list[Manifest], reader: RunReader, snapshot: Snapshot) -> None:
    if path and path[0].kind == "anchor":
        _replace(snapshot.tensors, _build(reader, path), path[-1])
    else:
        _advance(reader, path, snapshot)


def _build(reader: RunReader, path: list[Manifest]) -> Weights:
    """New tensors: the anchor at the start of the path, and the deltas on it."""
    snapshot = _load(reader, path[0])
    _advance(reader, path[1:], snapshot)
    return snapshot.tensors


def _load(reader: RunReader, anchor: Manifest) -> Snapshot:
    if anchor.files:
        with reader.fetched(anchor) as files:
            return Snapshot.from_anchor(anchor, files)
    base = reader.run().base
    snapshot = Snapshot(load_base(base), anchor.version)
    if (found := fingerprint.to_text(snapshot.fingerprint)) != anchor.fingerprint:
        raise ChainError(
            f"the base model of run {anchor.run_id!r}, {base.repo!r}, has fingerprint {found}, but version "
            f"{anchor.version} has {anchor.fingerprint}; pass the weights that the run started from"
        )
    return snapshot


def _advance(reader: RunReader, path: list[Manifest], snapshot: Snapshot) -> None:
    """Apply deltas in place; take all of them back when one of them fails."""
    start, done = snapshot.version, list[list[Change]]()
    try:
        for manifest in path:
            with reader.fetched(manifest) as files:
                changes = snapshot.stage(manifest, files[0])
            done.append(changes)  # before the commit, which may be interrupted half-way
            snapshot.commit(manifest.version, changes)
        if path:
            _recount(snapshot.tensors, path[-1])
    except BaseException:
        for changes in reversed(done):
            snapshot.undo(start, changes)
        raise


def _recount(weights: Weights, manifest: Manifest) -> None:
    found = fingerprint.to_text(fingerprint.fingerprint(weights))
    if found != manifest.fingerprint:
        raise IntegrityError(
            f"version {manifest.version} has fingerprint {manifest.fingerprint}, but the tensors given hold {found} "
            "with its values in place: do two of them share memory?"
        )


def _refuse_unwritable(weights: Weights) -> None:
    for name, tensor in weights.items():
        expanded = 0 in [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
        if expanded or (tensor.is_inference() and not torch.is_inference_mode_enabled()):
            raise SyncError(f"tensor {name!r} cannot be written in place (expanded, or of inference mode); clone it")


def _replace(weights: Weights, built: Weights, target: Manifest) -> None:
    """Put whole new values in place; put the old ones back when that fails."""
    if not weights:
        weights.update(built)
        return
    wanted, found = _specs(built), _specs(weights)
    if wanted != found:
        odd = sorted(str(spec) for spec in set(wanted.values()) ^ set(found.values()))
        raise SyncError(f"the tensors given are not those of the run; these differ: {'; '.join(odd[:4])}")
    old: Weights = {}
    try:
        for name, tensor in built.items():
            old[name] = weights[name].detach().clone()
            weights[name].detach().copy_(tensor)
        _recount(weights, target)
    except BaseException:
        for name, tensor in reversed(old.items()):
            weights[name].detach().copy_(tensor)
        raise


def _specs(weights: Weights) -> dict[str, TensorSpec]:
    return {name: spec_of(name, tensor) for name, tensor in weights.items()}
