"""A folder in the place of a Hub bucket, with the same layout. Files appear whole or not at all, and survive a crash."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from shared.errors import BucketError, MissingFileError


class FolderBucket:
    """Several processes may read while one writes. Temporary files have names that start with a dot."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self._root = root.expanduser().resolve()
        with self._explained("use", ""):
            self._root.mkdir(parents=True, exist_ok=True)

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        target = self._locate(path)
        with self._explained("write", path):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = _copy_durably(source, target.parent)
            try:
                if replace:
                    os.replace(temporary, target)
                else:
                    os.link(temporary, target)  # fails when the file exists, which a rename does not
                _fsync(target.parent)
            finally:
                temporary.unlink(missing_ok=True)
            if not _same(source, target):
                raise BucketError(f"{path} in bucket {self.name} reads back different from what was written")

    def read(self, path: str) -> bytes:
        with self._explained("read", path):
            return self._locate(path).read_bytes()

    def download(self, path: str, target: Path) -> None:
        with self._explained("read", path):
            os.replace(_copy_durably(self._locate(path), target.parent), target)

    def files(self, folder: str) -> list[str]:
        place = self._locate(folder)
        with self._explained("list", folder):
            if not place.is_dir():
                return []
            return sorted(f"{folder}/{item.name}" for item in place.iterdir() if _visible(item) and item.is_file())

    def folders(self) -> list[str]:
        with self._explained("list", ""):
            return sorted(item.name for item in self._root.iterdir() if _visible(item) and item.is_dir())

    def _locate(self, path: str) -> Path:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts:
            raise BucketError(f"{path!r} is not a path inside bucket {self.name}")
        return self._root.joinpath(*parts)

    @contextmanager
    def _explained(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFileError(f"{path} is not in bucket {self.name}") from error
        except FileExistsError as error:
            raise BucketError(f"{path} is already in bucket {self.name}, and files there are written once") from error
        except OSError as error:
            raise BucketError(f"cannot {verb} {path or 'folder'} in bucket {self.name}: {self._reason(error)}") from error

    def _reason(self, error: OSError) -> str:
        if error.errno == errno.ENOSPC:
            free = shutil.disk_usage(self._root).free / 1e6
            return f"no space left on device ({free:.0f} MB free); free some and try again"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return f"{error.strerror}; choose a folder that this user may write"
        return str(error.strerror)


def _copy_durably(source: Path | bytes, folder: Path) -> Path:
    """A temporary file in `folder` with the content of `source`, flushed to the disk."""
    descriptor, name = tempfile.mkstemp(prefix=".", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(source, bytes):
                file.write(source)
            else:
                with source.open("rb") as origin:
                    shutil.copyfileobj(origin, file, 1 << 22)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
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
