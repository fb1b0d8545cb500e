"""A bucket behind a link of a given speed. Knows nothing of what is moved; what moves no file takes no time."""

import time
from pathlib import Path

from shared.bucket import Bucket
from tests.shared.passing_bucket import PassingBucket, size_of


class Throttled(PassingBucket):
    """Each file takes at least its bytes over `bytes_per_s`, in either direction."""

    def __init__(self, bucket: Bucket, bytes_per_s: float) -> None:
        super().__init__(bucket)
        self.bytes_per_s = bytes_per_s

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        started = time.monotonic()
        super().write(path, source, replace=replace)
        self._wait(started, size_of(source))

    def download(self, path: str, target: Path) -> None:
        started = time.monotonic()
        super().download(path, target)
        self._wait(started, size_of(target))

    def _wait(self, started: float, nbytes: int) -> None:
        time.sleep(max(0.0, started + nbytes / self.bytes_per_s - time.monotonic()))
