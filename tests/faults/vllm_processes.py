"""The processes of a running Space, by what they are, and what the machine can do to one of them."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.space_vllm.live_server import Server

API, CORE, WORKER = "entrypoints.openai.api_server", "VLLM::EngineCore", "VLLM::Worker"


def part_of(server: Server, name: str) -> psutil.Process:
    """Fails unless there is exactly one."""
    family = psutil.Process(server.running.process.pid).children(recursive=True)
    fits = [process for process in family if name in " ".join(process.cmdline())]
    assert len(fits) == 1, f"{len(fits)} processes of {name}:\n{server.running.tail()}"
    return fits[0]


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@contextmanager
def small_files_only(process: psutil.Process, nbytes: int) -> Iterator[None]:
    """No file that it writes may become larger: further writes fail, as on a disk that is full."""
    before = process.rlimit(resource.RLIMIT_FSIZE)
    process.rlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        process.rlimit(resource.RLIMIT_FSIZE, before)
