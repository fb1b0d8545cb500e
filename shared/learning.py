"""Whether a run has learned: the rewards of its end against those of its beginning. Knows no bucket and no trainer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from shared.document import LARGEST

WINDOW = 10
LEAST_STEPS = 40


@dataclass(frozen=True)
class Learning:
    """Mean reward of the first and the last ten steps, and the standard error of their difference."""

    first: float
    last: float
    standard_error: float

    @property
    def learned(self) -> bool:
        return self.last - self.first > 2 * self.standard_error


def learning(rewards: Sequence[float | None]) -> Learning | None:
    """None for a run that is too short to tell. A reward that is not there, not finite or beyond 64 bits
    does not count."""
    known = [reward for reward in rewards if reward is not None and abs(reward) <= LARGEST]
    if len(known) < LEAST_STEPS:
        return None
    first, last = known[:WINDOW], known[-WINDOW:]
    return Learning(fmean(first), fmean(last), math.sqrt((variance(first) + variance(last)) / WINDOW))
