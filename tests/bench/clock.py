"""How long work takes, in seconds."""

import time
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


def timed(work: Callable[[], Made]) -> tuple[float, Made]:
    """And what the work made."""
    started = time.perf_counter()
    made = work()
    return time.perf_counter() - started, made


def best(work: Callable[[], object]) -> float:
    """The better of two times."""
    return min(timed(work)[0] for _ in range(2))
