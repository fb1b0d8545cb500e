"""Anchors beside the chain, and what may be deleted once there are newer ones.

A receiver that joins has to fetch an anchor and all deltas since. When these have grown to more than the model, and to
more than 64 MB, or to 256 files, the newest version gets an anchor as another representation: at worst a receiver
fetches the model, as much again or 64 MB, and one delta more. The chains that start at the newest two anchors are
kept, so that a receiver which has just begun with the older one finds it all.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from shared import layout
from shared.bucket import Bucket
from shared.errors import ChainError, IntegrityError, SyncError
from shared.reader import RunReader
from shared.snapshot import Snapshot
from shared.types import Manifest
from trainer_box.encode import encode_anchor, plain_bytes
from trainer_box.writer import Writer

Work = Callable[[], None]

_LOG = logging.getLogger(__name__)
_KEPT_CHAINS = 2
MOST_DELTAS = 256
LEAST_BYTES = 64_000_000


def delete_old_chains(bucket: Bucket, run_id: str) -> None:
    """Delete data older than the second newest whole anchor; manifests and rollouts stay. Raises BucketError."""
    starts = _newest_anchors(bucket, run_id)
    if len(starts) < _KEPT_CHAINS:
        return
    folders = (layout.anchors(run_id), layout.deltas(run_id))
    data = {path: layout.version_of(path) for folder in folders for path in bucket.files(folder)}
    old = [path for path, version in data.items() if version is not None and version < starts[-1]]
    if old:
        bucket.delete(old)


def _newest_anchors(bucket: Bucket, run_id: str) -> list[int]:
    """Versions of the newest whole anchors, newest first."""
    reader, found = RunReader(bucket, run_id), list[int]()
    stored = {layout.version_of(path) for path in bucket.files(layout.anchors(run_id))}
    for version in sorted((version for version in stored if version is not None), reverse=True):
        if len(found) < _KEPT_CHAINS and _is_whole(reader, version):
            found.append(version)
    return found


def _is_whole(reader: RunReader, version: int) -> bool:
    try:
        return reader.manifest(version).kind == "anchor" or reader.anchor(version) is not None
    except (ChainError, IntegrityError):
        return False


class Housekeeping:
    """What is done beside the chain after a version became whole. Nothing depends on it: a failure is logged."""

    def __init__(self, bucket: Bucket, writer: Writer, shard_bytes: int) -> None:
        self._bucket = bucket
        self._writer = writer
        self._shard_bytes = shard_bytes
        self._deltas = 0  # since an anchor was begun
        self._delta_bytes = 0
        self._is_due = False

    def note(self, manifest: Manifest) -> None:
        """A version became whole."""
        if manifest.kind == "anchor":
            self._is_due, self._deltas, self._delta_bytes = True, 0, 0
        else:
            self._deltas += 1
            self._delta_bytes += manifest.nbytes

    def work(self, manifest: Manifest, snapshot: Snapshot) -> Work | None:
        """What is due, to be called on any thread; the weights of the version may change meanwhile."""
        if self._deltas >= MOST_DELTAS or self._delta_bytes > max(LEAST_BYTES, plain_bytes(snapshot)):
            return self._anchor(manifest, snapshot)
        return self._tidy(manifest.run_id) if self._is_due else None

    def _anchor(self, manifest: Manifest, snapshot: Snapshot) -> Work | None:
        folder = TemporaryDirectory(prefix="anchor-")
        try:
            files = encode_anchor(manifest.run_id, snapshot, self._shard_bytes, Path(folder.name))
        except OSError as error:
            folder.cleanup()
            _LOG.warning("there is no disk space for an extra anchor of version %s: %s", manifest.version, error)
            return None
        self._deltas, self._delta_bytes = 0, 0
        data = tuple(data for data, _ in files)
        anchor = replace(manifest, kind="anchor", files=data, base_version=None, base_fingerprint=None)

        def upload() -> None:
            with folder, _logged(f"an extra anchor of version {anchor.version}"):
                self._writer.upload(files)
                self._writer.announce_anchor(anchor)
                self._is_due = True
            self._tidy(anchor.run_id)()

        return upload

    def _tidy(self, run_id: str) -> Work:
        def tidy() -> None:
            with _logged("the deletion of old data"):
                self._writer.check_alone()
                delete_old_chains(self._bucket, run_id)
                self._is_due = False

        return tidy


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except SyncError as error:
        _LOG.warning("%s failed and is left to the next time: %s", what, error)
