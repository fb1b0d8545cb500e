"""The one writer of a run: claims it, writes files in an order that no reader misunderstands, says what became whole.

Knows paths, manifests and the pointer; nothing of tensors. On one host a lock excludes a second writer. Elsewhere each
writer has an epoch: whoever opens the run writes a higher one into the pointer, and everybody looks at it before each
write. The Hub has no compare-and-set, so a write that began before a claim may come in after it and hide it. The
claimant finds that at its next look and claims again; until then both write, each version whole. Of two with equal
epochs, which opened at the same moment, the one whose pointer is written over stops.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import xxhash
from filelock import FileLock, Timeout

from shared import layout
from shared.bucket import Bucket
from shared.errors import BucketError, ChainError, FencedError, IntegrityError, MissingFileError
from shared.reader import RunReader
from shared.types import Base, DataFile, Manifest, Pointer, Run, now


class OvertakenError(BucketError):
    """A writer that opened the run before wrote past this one's claim. The claim holds again, the next may follow."""


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
        self._last: Pointer | None = None  # that this one wrote, or tried to
        self._known: set[int] = set()  # the versions of all of these
        lock_file = bucket.lock_file(run_id)
        self._lock = _locked(lock_file, run_id)
        try:
            self._scratch = _cleared(lock_file)
            if self._lock is not None:
                bucket.tidy(run_id)
            self.run = self._open(model, base)
        except BaseException:
            self.close()
            raise

    def folder(self) -> tempfile.TemporaryDirectory[str]:
        """A temporary one. When this process is killed, the next writer of the run on this host removes it."""
        return tempfile.TemporaryDirectory(prefix=self._scratch)

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
        self.hold_claim()  # again: an upload takes its time
        self._bucket.write(layout.manifest(self._run_id, manifest.version), raw)
        self.hold_claim()  # and again: whoever claims the run does so in the pointer
        self._move(manifest, raw)

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
        self._check(pointer)
        try:
            found = self._bucket.read(path)
        except MissingFileError:
            return False
        if found != raw:
            raise FencedError(f"{path} is another publisher's; stop one of the two")
        self._move(manifest, raw)
        return True

    def check_alone(self) -> None:
        """Raises FencedError when somebody else has claimed the run."""
        self._check(self._pointer())

    def hold_claim(self) -> None:
        """Before each write of a version: claim the run again where an older writer's pointer hides the claim.

        Raises FencedError when somebody else has claimed the run, OvertakenError when that pointer names a newer
        version than this one knows.
        """
        pointer = self._pointer()
        self._check(pointer)
        if pointer is None or pointer.writer_epoch == self.epoch:
            return
        if self._last is not None and pointer.version <= self._last.version:
            return self._point(self._last)
        self._point(pointer)
        self.spent = pointer.version
        raise OvertakenError(
            f"version {pointer.version} of run {self._run_id!r} is by a publisher that this one (writer epoch "
            f"{self.epoch}) has taken over from, and that stops at its next write; the next version goes on from there"
        )

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    # Opening

    def _open(self, model: str, base: Base) -> Run:
        reader = RunReader(self._bucket, self._run_id)
        try:
            run = reader.run()
        except ChainError:
            run = Run(self._run_id, now(), model, base)
            self._bucket.write(layout.run_file(self._run_id), run.to_json())
            return run
        pointer = self._pointer()
        named = {pointer.version} if pointer else set()  # also when its manifest is lost, or not listed yet
        whole = named | self._numbers(layout.manifests(self._run_id))
        data = self._numbers(layout.anchors(self._run_id)) | self._numbers(layout.deltas(self._run_id))
        self.spent = max(whole | data, default=-1)
        self.newest = _newest(reader, whole)
        self.epoch = 1 + max(1, pointer.writer_epoch if pointer else 0, self.newest.writer_epoch if self.newest else 0)
        self._claim(pointer)
        return run

    def _numbers(self, folder: str) -> set[int]:
        return set(layout.by_version(self._bucket.files(folder)))

    def _claim(self, pointer: Pointer | None) -> None:
        """From now on the pointer names the newest version that can be read; a run without versions has none."""
        if self.newest is None:
            if pointer is not None:
                self._point(pointer)
            return
        raw = self.newest.to_json()  # the bytes in the bucket, but where another program wrote them
        if pointer is None or pointer.manifest_xxh3 != _hash(raw):
            raw = self._bucket.read(layout.manifest(self._run_id, self.newest.version))
        self._move(self.newest, raw)

    # The pointer

    def _pointer(self) -> Pointer | None:
        """None when there is none, or a damaged one, which the next version replaces."""
        path = layout.pointer(self._run_id)
        try:
            return Pointer.from_json(self._bucket.read(path), path)
        except (MissingFileError, IntegrityError):
            return None

    def _check(self, pointer: Pointer | None) -> None:
        if pointer is None or pointer.writer_epoch < self.epoch:
            return
        if pointer.writer_epoch == self.epoch and pointer.version in self._known:
            return
        raise FencedError(
            f"run {self._run_id!r} is being written by another publisher: version {pointer.version} is of writer "
            f"epoch {pointer.writer_epoch}, this one has {self.epoch}; stop one of the two"
        )

    def _move(self, manifest: Manifest, raw: bytes) -> None:
        """Forward to a version that is whole, not back from one that another writer brought it to."""
        if self._last is None or self._last.version <= manifest.version:
            path = layout.manifest(self._run_id, manifest.version)
            self._point(Pointer(self._run_id, manifest.version, path, _hash(raw)))

    def _point(self, pointer: Pointer) -> None:
        self._last = replace(pointer, writer_epoch=self.epoch)
        self._known.add(pointer.version)  # first: a write that fails may still take effect
        self._bucket.write(layout.pointer(self._run_id), self._last.to_json(), replace=True)


def _newest(reader: RunReader, versions: Iterable[int]) -> Manifest | None:
    """A version is whole by its manifest, also when the pointer was not moved or is damaged."""
    for version in sorted(versions, reverse=True):
        try:
            return reader.manifest(version)
        except (ChainError, IntegrityError):
            continue
    return None


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


def _cleared(lock_file: Path | None) -> str:
    """How the names of this run's temporary folders begin. The lock is held, so those there are were left behind."""
    if lock_file is None:
        return "publish-"
    prefix = f"publish-{_hash(str(lock_file).encode())}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        shutil.rmtree(folder, ignore_errors=True)  # another user's is for that user to remove
    return prefix
