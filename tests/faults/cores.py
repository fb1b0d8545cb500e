"""On which cores the table's own processes run.

vLLM's CPU worker binds itself to the first core, where it waits busily. Importing torch moves a process to every core
it may use, one after the other (its MKL counts them so), and there are kernels on which it then waits for minutes.
"""

import os
from collections.abc import Sequence


def beside_vllm(command: Sequence[str]) -> list[str]:
    """The command, kept off the first core where there are others."""
    others = sorted(os.sched_getaffinity(0))[1:]
    return ["taskset", "--cpu-list", ",".join(map(str, others)), *command] if others else list(command)
