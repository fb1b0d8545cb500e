"""The same work on each change of a version, while the engine is paused.

On a CPU it is mostly waiting for memory, so several cores get through it sooner; a GPU does each at once by itself.
Knows nothing of the work.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch

from shared.changes import Change

Made = TypeVar("Made")

_SHARE = 1 << 19  # changed elements that are worth a thread
_PIECE = (1 << 15) - 1  # so few that torch goes through them without threads of its own, which each of ours would get


def in_parallel(work: Callable[[Change], Made], changes: Sequence[Change]) -> list[Made]:
    """What `work` makes of each, or of pieces of each, in any order.

    On the CPU as many threads as torch may use there do it; where no more can be started, fewer do. Raises what a work
    has raised. Once this returns or raises, none is going on.
    """
    threads = min(torch.get_num_threads(), sum(change.count for change in changes) // _SHARE)
    if threads < 2 or not all(change.new.is_cpu for change in changes):
        return [work(change) for change in changes]
    rest = iter([piece for change in changes for piece in change.pieces(_PIECE)])
    made, helping = list[Made](), list[Future[None]]()

    def go_on() -> None:
        for piece in rest:
            made.append(work(piece))

    with ThreadPoolExecutor(threads - 1, "changes", _move_to, (_cores(),)) as pool:
        with suppress(RuntimeError):  # the limit on threads is reached
            for _ in range(threads - 1):
                helping.append(pool.submit(go_on))
        go_on()
    for helper in helping:
        helper.result()
    return made


def _cores() -> set[int]:
    """Those of this process's threads: torch's may be bound to one each, and a new one is bound as its parent is."""
    cores = set[int]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            cores |= os.sched_getaffinity(int(thread.name))
    return cores


def _move_to(cores: set[int]) -> None:
    with suppress(OSError):  # where that is not allowed, a thread stays where it is
        os.sched_setaffinity(0, cores)
