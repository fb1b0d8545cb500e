"""A folder in the place of a Hub bucket, with the same layout. Files appear whole or not at all, and are durable."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from shared.errors import BucketError, MissingFileError

_PARTIAL = ".partial"


class FolderBucket:
    """Several processes may read while one writes. Temporary files are named `.*.partial`."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self._root = root.expanduser().resolve()
        with self._explained("use", ""):
            self._root.mkdir(parents=True, exist_ok=True)

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        with self._explained("write", path):
            target = self._locate(path)
            if not replace and target.exists():
                raise BucketError(f"{path} is already in bucket {self.name}, and files there are written once")
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = _copy_durably(source, target.parent)
            try:
                if replace:
                    os.replace(temporary, target)
                else:
                    os.link(temporary, target)  # fails when the file exists, which a rename does not
                for folder in target.relative_to(self._root).parents:
                    _fsync(self._root / folder)
            finally:
                temporary.unlink(missing_ok=True)
            if not _same(source, target):
                raise BucketError(f"{path} in bucket {self.name} reads back different from what was written")

    def read(self, path: str) -> bytes:
        with self._explained("read", path):
            return self._present(path).read_bytes()

    def read_all(self, paths: Sequence[str]) -> dict[str, bytes]:
        found = {}
        for path in paths:
            with suppress(MissingFileError):
                found[path] = self.read(path)
        return found

    def download(self, path: str, target: Path) -> None:
        with self._explained("read", path, target.parent):
            temporary = _copy_durably(self._present(path), target.parent)
            try:
                os.replace(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)

    def files(self, folder: str) -> list[str]:
        with self._explained("list", folder):
            place = self._locate(folder)
            if not place.is_dir():
                return []
            return sorted(f"{folder}/{item.name}" for item in place.iterdir() if _visible(item) and item.is_file())

    def folders(self) -> list[str]:
        with self._explained("list", ""):
            return sorted(item.name for item in self._root.iterdir() if _visible(item) and item.is_dir())

    def delete(self, paths: Sequence[str]) -> None:
        with self._explained("delete from", ""):
            places = [self._locate(path) for path in paths]
            for place in places:
                place.unlink(missing_ok=True)
            for folder in {place.parent for place in places if place.parent.is_dir()}:
                _fsync(folder)

    def lock_file(self, run_id: str) -> Path:
        with self._explained("lock a run", ""):
            return self._locate(f".{run_id}.lock")

    def tidy(self, run_id: str) -> None:
        with self._explained("tidy", run_id):
            for leftover in self._locate(run_id).rglob(f".*{_PARTIAL}"):
                leftover.unlink(missing_ok=True)

    def _locate(self, path: str) -> Path:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise BucketError(f"{path!r} is not a path inside bucket {self.name}")
        if not self._root.is_dir():
            raise BucketError(f"the folder of bucket {self.name} is gone; it was there when the bucket was opened")
        return self._root.joinpath(*parts)

    def _present(self, path: str) -> Path:
        place = self._locate(path)
        if not place.is_file():
            raise MissingFileError(f"{path} is not in bucket {self.name}")
        return place

    @contextmanager
    def _explained(self, verb: str, path: str, place: Path | None = None) -> Iterator[None]:
        """`place` is the folder that is written, where it is not the bucket's."""
        try:
            yield
        except OSError as error:
            what = f"cannot {verb} {path or 'the folder'} in bucket {self.name}"
            raise BucketError(f"{what}: {_reason(error, place or self._root)}") from error


def _reason(error: OSError, place: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on device: {place}; free some and try again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.strerror}: {place}; choose a folder that this user may write"
    return f"{error.strerror or error}: {error.filename or place}"


def _copy_durably(source: Path | bytes, folder: Path) -> Path:
    """A temporary file in `folder` with the content of `source`, flushed to the disk."""
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=_PARTIAL, dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(source, bytes):
                file.write(source)
            else:
                with source.open("rb") as origin:
                    shutil.copyfileobj(origin, file, 1 << 22)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # mkstemp's mode would shut out readers that run as another user
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)


def _same(source: Path | bytes, target: Path) -> bool:
    if isinstance(source, bytes):
        return target.read_bytes() == source
    with source.open("rb") as one, target.open("rb") as other:
        while block := one.read(1 << 22):
            if other.read(len(block)) != block:
                return False
        return not other.read(1)


def _visible(item: Path) -> bool:
    return not item.name.startswith(".")


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
