"""A bucket that passes every call on to another one. What is measured or slowed down is for those made of it."""

from collections.abc import Sequence
from pathlib import Path

from shared.bucket import Bucket


class PassingBucket:
    def __init__(self, bucket: Bucket) -> None:
        self.name = bucket.name
        self._bucket = bucket

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        self._bucket.write(path, source, replace=replace)

    def read(self, path: str) -> bytes:
        return self._bucket.read(path)

    def read_all(self, paths: Sequence[str]) -> dict[str, bytes]:
        return self._bucket.read_all(paths)

    def download(self, path: str, target: Path) -> None:
        self._bucket.download(path, target)

    def files(self, folder: str) -> list[str]:
        return self._bucket.files(folder)

    def folders(self) -> list[str]:
        return self._bucket.folders()

    def delete(self, paths: Sequence[str]) -> None:
        self._bucket.delete(paths)

    def lock_file(self, run_id: str) -> Path | None:
        return self._bucket.lock_file(run_id)

    def tidy(self, run_id: str) -> None:
        self._bucket.tidy(run_id)


def size_of(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size
