"""The same work on each change of a version, while the engine is paused.

On a CPU it is mostly waiting for memory, so several cores get through it sooner; a GPU does each at once by itself.
Knows nothing of the work.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from shared.changes import Change

Made = TypeVar("Made")


def in_parallel(work: Callable[[Change], Made], changes: Sequence[Change]) -> list[Made]:
    """What `work` makes of each, in any order; on the CPU by as many threads as torch may use there.

    Raises what a work has raised. Once this returns or raises, none is going on.
    """
    if not all(change.new.is_cpu for change in changes):
        return [work(change) for change in changes]
    threads = torch.get_num_threads()
    rest = iter(sorted(changes, key=lambda change: -change.count))  # largest first, so that all threads end together
    with ThreadPoolExecutor(threads, "changes") as pool:
        parts = [pool.submit(lambda: [work(change) for change in rest]) for _ in range(threads)]
    return [made for part in parts for made in part.result()]
