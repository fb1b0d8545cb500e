"""What tests ask of processes: whether they run, what they have printed, and to wait for something."""

import time
from collections.abc import Callable

import psutil
import pytest

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
    """What this process and those that it started have printed until now, line by line."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self._out = self._err = ""

    def out(self) -> list[str]:
        self._read()
        return self._out.splitlines()

    def err(self) -> list[str]:
        self._read()
        return self._err.splitlines()

    def _read(self) -> None:
        more = self._capfd.readouterr()
        self._out, self._err = self._out + more.out, self._err + more.err
