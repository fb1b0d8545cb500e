"""A bucket that stops its process at one exact place: before a certain file is written, until it is told to go on."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from shared.bucket import Bucket

Tell = Callable[[str, str], None]


class HaltingBucket:
    """`tell` is called with "halted" or "written" and the path. Halts once each time that it was armed."""

    def __init__(self, bucket: Bucket, tell: Tell) -> None:
        self.name = bucket.name
        self._bucket = bucket
        self._tell = tell
        self._place = ""
        self._on = threading.Event()

    def arm(self, place: str) -> None:
        """Halt before the next write of a path in which `place` occurs."""
        self._on.clear()
        self._place = place

    def go_on(self) -> None:
        self._on.set()

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        if self._place and self._place in path:
            self._place = ""
            self._tell("halted", path)
            self._on.wait()
        self._bucket.write(path, source, replace=replace)
        self._tell("written", path)

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
