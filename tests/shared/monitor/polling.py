"""A poller without its thread, over buckets and units that count what they are asked, on a clock that a test turns."""

from collections.abc import Callable
from pathlib import Path

from shared.bucket.folder import FolderBucket
from shared.errors import BucketError, MissingFileError
from shared.monitor.poller import Poller
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer


class CountingBucket(FolderBucket):
    """Records the paths that are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"local:{root}", root)
        self.reads: list[str] = []

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        return super().read(path)


class FailingBucket(CountingBucket):
    """Cannot list `unlisted`; a file that is `hidden` is listed, but not there."""

    unlisted = hidden = "none"

    def files(self, folder: str) -> list[str]:
        self.reads.append(folder)
        if folder == self.unlisted:
            raise BucketError("told to fail")
        return super().files(folder)

    def read(self, path: str) -> bytes:
        if path == self.hidden:
            raise MissingFileError(path)
        return super().read(path)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class CountingUnit:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self) -> Answer:
        self.asked += 1
        return Answer({"version": self.asked})


def polled(poller: Poller, run_id: str = "", version: int | None = None) -> Snapshot:
    poller.look(run_id, version)
    poller.poll()
    return poller.look(run_id, version)


def turns(poller: Poller, clock: Clock, seconds: float, look: Callable[[int], object] = lambda tick: None) -> int:
    """As the poller's thread takes them; in each tenth of a second someone may look."""
    due, count = clock.now, 0
    for tick in range(round(seconds * 10)):
        look(tick)
        while clock.now >= due or poller._wake.is_set():
            poller._wake.clear()
            due, count = clock.now + poller.turn(), count + 1
            assert count < 200 * seconds, "it reads without a pause"
        clock.now += 0.1
    return count


def viewers(poller: Poller, count: int, run_id: str = "", version: int | None = None) -> Callable[[int], None]:
    """Each looks every 2 s, one after another."""

    def look(tick: int) -> None:
        for viewer in range(count):
            if tick % 20 == viewer:
                poller.look(run_id, version)

    return look
