"""Units as child processes: started with their output in a log file, waited for, and stopped for certain.

Knows commands and health URLs; what a unit does is not its business.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from shared.errors import SyncError

LOOPBACK = "127.0.0.1"
_STOP_S = 20.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TAIL_LINES = 15


class Unit:
    """One process in a process group of its own, so that its children end with it."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait_until_healthy(self, url: str, deadline_s: float, progress: Callable[[str], None]) -> None:
        """Return when `url` answers 200. Raises SyncError when the process ends or after `deadline_s` seconds."""
        started = time.monotonic()
        while not _is_healthy(url):
            waited = time.monotonic() - started
            if self.exit_code is not None:
                raise SyncError(self.obituary())
            if waited > deadline_s:
                raise SyncError(f"{self.name} is not ready after {deadline_s:.0f} s\n{self.tail()}")
            progress(f"{self.name}: starting, {waited:.0f} s")
            time.sleep(0.5)

    def obituary(self) -> str:
        """What there is to say of a process that ended when it should not: its code and its last lines."""
        return f"{self.name} ended with exit code {self.exit_code}; its last lines, from {self._log}:\n{self.tail()}"

    def tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines)

    @property
    def log(self) -> Path:
        return self._log

    def ask_to_stop(self) -> None:
        if self.exit_code is None:
            self._signal_group(signal.SIGTERM)

    def stop(self) -> None:
        """End the process and all its children: asked first, killed when that does not help."""
        self.ask_to_stop()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self._signal_group(signal.SIGKILL)
        self._process.wait(_STOP_S)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # when all of the group have ended
            os.killpg(self._process.pid, number)


class Units:
    """The units of one loop, by name; leaving the context stops them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._units: dict[str, Unit] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ignored = [(number, signal.signal(number, signal.SIG_IGN)) for number in _ENDING]
        for unit in self._units.values():
            unit.ask_to_stop()
        for unit in self._units.values():
            unit.stop()
        for number, handler in ignored:
            signal.signal(number, handler)

    def __getitem__(self, name: str) -> Unit:
        return self._units[name]

    def start(self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Unit:
        with _undisturbed():  # or a process would be running that nobody knows
            self._units[name] = Unit(name, module, arguments, environment, self._folder / f"{name}.log")
        return self._units[name]

    def dead(self, *, but: Unit) -> Unit | None:
        """A unit that has ended, `but` excepted."""
        return next((unit for unit in self._units.values() if unit is not but and unit.exit_code is not None), None)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A signal to end is answered when the context is over."""
    arrived: list[int] = []
    handlers = [(number, signal.signal(number, lambda number, _: arrived.append(number))) for number in _ENDING]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
    for late in arrived:
        signal.raise_signal(late)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def check_port(port: int, option: str) -> None:
    """Raises SyncError when there is no such port, or this process may not listen on it."""
    if not 0 < port < 65536:
        raise SyncError(f"{port} is not a port; choose one from 1 to 65535 with {option}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise SyncError(f"port {port} cannot be used ({error.strerror}); choose another with {option}") from error


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
