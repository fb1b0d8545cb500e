"""The one writer of a run: claims it, writes files in an order that no reader misunderstands, says what became whole.

Knows paths, manifests and the pointer; nothing of tensors. On one host a lock excludes a second writer. Elsewhere each
writer has an epoch: whoever opens the run writes a higher one into the pointer, and everybody looks at it before each
write. The Hub has no compare-and-set: two that write between the other's look and write may spoil each other's newest
version. Its content hash then tells every receiver so, and the next version covers it.
"""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import xxhash
from filelock import FileLock, Timeout

from shared import layout
from shared.bucket import Bucket
from shared.errors import BucketError, ChainError, FencedError, IntegrityError, MissingFileError
from shared.reader import RunReader
from shared.types import Base, DataFile, Manifest, Pointer, Run, now


class Writer:
    """`run` is what the bucket says of the run, `newest` its newest readable version, `spent` its highest number.

    Raises BucketError when the bucket fails, or another process of this host writes the run.
    """

    def __init__(self, bucket: Bucket, run_id: str, model: str, base: Base) -> None:
        self.newest: Manifest | None = None
        self.spent = -1
        self.epoch = 1
        self._bucket = bucket
        self._run_id = run_id
        self._reader = RunReader(bucket, run_id)
        self._lock = _locked(bucket.lock_file(run_id), run_id)
        try:
            self.run = self._claim(model, base)
        except BaseException:
            self.close()
            raise

    def upload(self, files: Sequence[tuple[DataFile, Path]]) -> None:
        """Write data files, read back."""
        for data, local in files:
            self._bucket.write(data.path, local)

    def readable(self, manifest: Manifest) -> bytes:
        """The manifest as it is written. Raises SyncError when no reader would accept it."""
        raw = manifest.to_json()
        Manifest.from_json(raw, layout.manifest(self._run_id, manifest.version))
        return raw

    def announce(self, manifest: Manifest, raw: bytes) -> None:
        """Make a version whole whose data is in the bucket: its manifest, then the pointer."""
        self.check_alone(manifest.version)  # again: an upload takes its time
        self._bucket.write(layout.manifest(self._run_id, manifest.version), raw)
        self.check_alone(manifest.version)  # and again: whoever claims the run does so in the pointer
        self._point_to(manifest, raw)

    def announce_anchor(self, manifest: Manifest) -> None:
        """Make an extra anchor whole, of a version that is."""
        self.check_alone()
        self._bucket.write(layout.anchor_manifest(self._run_id, manifest.version), manifest.to_json())

    def is_whole(self, manifest: Manifest) -> bool:
        """What became of a version whose announcement failed: read back; the pointer follows when it is whole."""
        path, raw = layout.manifest(self._run_id, manifest.version), manifest.to_json()
        pointer = self._pointer()
        if pointer is not None and (pointer.version, pointer.manifest_xxh3) == (manifest.version, _hash(raw)):
            return True
        self.check_alone(manifest.version)
        try:
            found = self._bucket.read(path)
        except MissingFileError:
            return False
        if found != raw:
            raise FencedError(f"{path} is another publisher's; stop one of the two")
        self._point_to(manifest, raw)
        return True

    def check_alone(self, version: int | None = None) -> None:
        """Raises FencedError when somebody else has claimed the run, or written this version or a later one."""
        pointer = self._pointer()
        if pointer is None or (pointer.writer_epoch <= self.epoch and (version is None or pointer.version < version)):
            return
        raise FencedError(
            f"run {self._run_id!r} is being written by another publisher: version {pointer.version} is of writer "
            f"epoch {pointer.writer_epoch}, this one has {self.epoch}; stop one of the two"
        )

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _claim(self, model: str, base: Base) -> Run:
        try:
            run = self._reader.run()
        except ChainError:
            run = Run(self._run_id, now(), model, base)
            self._bucket.write(layout.run_file(self._run_id), run.to_json())
            return run
        folders = (layout.manifests(self._run_id), layout.anchors(self._run_id), layout.deltas(self._run_id))
        numbers = [layout.version_of(path) for folder in folders for path in self._bucket.files(folder)]
        self.spent = max((number for number in numbers if number is not None), default=-1)
        self.newest = self._newest()
        pointer = self._pointer()
        self.epoch = 1 + max(1, pointer.writer_epoch if pointer else 0, self.newest.writer_epoch if self.newest else 0)
        if self.newest is not None:
            self._point_to(self.newest, self._bucket.read(layout.manifest(self._run_id, self.newest.version)))
        return run

    def _newest(self) -> Manifest | None:
        """A version is whole by its manifest, also when the pointer was not moved or is damaged."""
        for version in reversed(self._reader.versions()):
            try:
                return self._reader.manifest(version)
            except IntegrityError:
                continue
        return None

    def _pointer(self) -> Pointer | None:
        """None when there is none, or a damaged one, which the next version replaces."""
        path = layout.pointer(self._run_id)
        try:
            return Pointer.from_json(self._bucket.read(path), path)
        except (MissingFileError, IntegrityError):
            return None

    def _point_to(self, manifest: Manifest, raw: bytes) -> None:
        path = layout.manifest(self._run_id, manifest.version)
        pointer = Pointer(self._run_id, manifest.version, path, _hash(raw), self.epoch)
        self._bucket.write(layout.pointer(self._run_id), pointer.to_json(), replace=True)


def _hash(raw: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(raw)


def _locked(path: Path | None, run_id: str) -> FileLock | None:
    """The lock ends with the process, whatever ends it; its file says who holds it."""
    if path is None:
        return None
    try:
        lock = FileLock(path, timeout=0, thread_local=False)
        lock.acquire()
        path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {now()}")
    except Timeout as error:
        raise BucketError(
            f"run {run_id!r} is being written already, by {path.read_text() or 'somebody'}; stop that one, or choose "
            "another run id"
        ) from error
    except OSError as error:
        raise BucketError(f"run {run_id!r} cannot be locked: {error}") from error
    return lock
