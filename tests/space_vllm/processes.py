"""What tests ask of processes: whether they run, what they have printed, and to wait for something."""

import os
import time
from collections.abc import Callable

import psutil

DEADLINE_S = 30.0
POLL_S = 0.02


def has_ended(process: int) -> bool:
    """An exit code that nobody has asked for yet is no process."""
    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def descendants(process: int) -> list[int]:
    return [child.pid for child in psutil.Process(process).children(recursive=True)]


def wait_until(met: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not met():
        assert time.monotonic() < deadline, f"not within {deadline_s} s"
        time.sleep(POLL_S)


class Printed:
    """What this process and those that it started have printed until now, line by line; to be used with `capfd`, which
    has it in files. Its own `readouterr` empties them, and loses what another process prints meanwhile.
    """

    def out(self) -> list[str]:
        return _lines(1)

    def err(self) -> list[str]:
        return _lines(2)


def _lines(number: int) -> list[str]:
    return os.pread(number, os.fstat(number).st_size, 0).decode().splitlines()
