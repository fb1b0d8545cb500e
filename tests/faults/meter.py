"""What processes hold while they run: memory, file handles, threads; and whether that grew."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

import psutil

WARM_UP = 0.4  # the share of samples that are not compared


@dataclass(frozen=True)
class Sample:
    megabytes: float
    handles: int
    threads: int


@dataclass
class Meter:
    """Of one process at a time: when it is replaced by another one, the count begins anew."""

    samples: list[Sample] = field(default_factory=list)
    _pid: int = 0

    def look(self, process: psutil.Process) -> None:
        if process.pid != self._pid:
            self._pid, self.samples = process.pid, []
        with process.oneshot():
            held = process.memory_info().rss / 1e6
            self.samples.append(Sample(held, process.num_fds(), process.num_threads()))

    def growth(self) -> Sample:
        """Between the medians of the first third after the warm-up, and of the last one."""
        rest = self.samples[int(WARM_UP * len(self.samples)) :]
        third = max(1, len(rest) // 3)
        first, last = _median(rest[:third]), _median(rest[-third:])
        return Sample(last.megabytes - first.megabytes, last.handles - first.handles, last.threads - first.threads)

    def last(self) -> Sample:
        return self.samples[-1]


def _median(samples: Sequence[Sample]) -> Sample:
    return Sample(
        median(one.megabytes for one in samples),
        median_low(one.handles for one in samples),
        median_low(one.threads for one in samples),
    )
