"""The same work on each change of a version, while the engine is paused.

On a CPU it is mostly waiting for memory, so several cores get through it sooner; a GPU does each at once by itself.
Knows nothing of the work.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch

from shared.changes import Change

Made = TypeVar("Made")

_FEW = 1 << 18  # changed elements in all: to start threads for no more takes longer than they save


def in_parallel(work: Callable[[Change], Made], changes: Sequence[Change]) -> list[Made]:
    """What `work` makes of each, in any order; on the CPU by as many threads as torch may use there.

    Raises what a work has raised. Once this returns or raises, none is going on.
    """
    threads = torch.get_num_threads() if _are_many(changes) else 1
    if threads == 1:
        return [work(change) for change in changes]
    rest = iter(sorted(changes, key=lambda change: -change.count))  # largest first, so that all threads end together
    with ThreadPoolExecutor(threads, "changes", os.sched_setaffinity, (0, _cores())) as pool:
        parts = [pool.submit(lambda: [work(change) for change in rest]) for _ in range(threads)]
    return [made for part in parts for made in part.result()]


def _are_many(changes: Sequence[Change]) -> bool:
    return all(change.new.is_cpu for change in changes) and sum(change.count for change in changes) > _FEW


def _cores() -> set[int]:
    """Those of this process's threads. vLLM binds each of torch's to one, and a new thread to that of its parent."""
    cores = set[int]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            cores |= os.sched_getaffinity(int(thread.name))
    return cores
