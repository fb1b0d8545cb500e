"""A bucket that stops its process at one exact place: before a certain file is written, until it is told to go on."""

import threading
from collections.abc import Callable
from pathlib import Path

from shared.bucket import Bucket
from tests.shared.passing_bucket import PassingBucket

Tell = Callable[[str, str], None]


class HaltingBucket(PassingBucket):
    """`tell` is called with "halted" or "written" and the path. Halts once each time that it was armed."""

    def __init__(self, bucket: Bucket, tell: Tell) -> None:
        super().__init__(bucket)
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
        super().write(path, source, replace=replace)
        self._tell("written", path)
