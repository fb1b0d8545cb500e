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
    """What `work` makes of each, in order; on the CPU by as many threads as torch may use there.

    Raises what the first work that failed has raised. Once this returns or raises, no work is going on.
    """
    if not all(change.new.is_cpu for change in changes):
        return [work(change) for change in changes]
    with ThreadPoolExecutor(torch.get_num_threads(), "changes") as pool:
        return list(pool.map(work, changes))
