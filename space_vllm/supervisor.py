"""Keeps a server running: looks at its /health, and starts it again whenever it has ended or is of no more use.

Knows whether it answers, not what it serves: one that says 503 is alive. It is never given up, except for arguments
that it does not take.
"""

import getpass
import os
import queue
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from shared.output import complain
from space_vllm.group import Group

_TICK_S = 0.2
_LOOK_S = 2.0  # a signal to end waits for so long, at most
_USAGE = 2  # argparse's exit code
_REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_LONGEST_HEADERS = 1 << 16


class Seen(Enum):
    HEALTHY = auto()
    ALIVE = auto()
    REFUSED = auto()
    SILENT = auto()


@dataclass(frozen=True)
class Limits:
    """Pauses, `period` and `stop` are seconds. The others count looks, of which there is one in each period: time in
    which the whole machine stood still is not held against the server.
    """

    first_pause: float = 1
    longest_pause: float = 60
    period: float = 5
    steady: int = 12  # healthy looks after which the next pause is the first one again
    start: int = 720  # an hour, for a large model from the Hub
    silence: int = 120  # ten minutes, so that a stopped process can go on
    refusals: int = 3  # vLLM whose engine has died stops listening, and waits for open connections without end
    stop: float = 8

    def pauses(self) -> Iterator[float]:
        pause = self.first_pause
        while True:
            yield pause
            pause = min(2 * pause, self.longest_pause)


class Watch:
    """What the looks at a server, from its start on, tell of it."""

    def __init__(self, limits: Limits) -> None:
        self.has_answered = self.was_steady = False
        self._limits = limits
        self._healthy = self._refused = self._unanswered = 0  # looks in a row

    def note(self, seen: Seen) -> None:
        answers = seen in (Seen.HEALTHY, Seen.ALIVE)
        self.has_answered |= answers
        self._healthy = self._healthy + 1 if seen is Seen.HEALTHY else 0
        self._refused = self._refused + 1 if seen is Seen.REFUSED else 0
        self._unanswered = 0 if answers else self._unanswered + 1
        self.was_steady |= self._healthy >= self._limits.steady

    @property
    def flaw(self) -> str | None:
        """Why the server is of no more use."""
        if not self.has_answered:
            return "never answered" if self._unanswered >= self._limits.start else None
        if self._refused >= self._limits.refusals:
            return "took no more connections"
        return "did not answer any more" if self._unanswered >= self._limits.silence else None


def look(host: str, port: int) -> Seen:
    """What a server answers to GET /health. Whatever is no sign of trouble is one of life.

    A host that stands for every address, 0.0.0.0 or ::, leads to this machine.
    """
    deadline = time.monotonic() + _LOOK_S
    try:
        with socket.create_connection((host, port), _LOOK_S) as connection:
            connection.sendall(_REQUEST)
            answer = _begun(connection, deadline)
    except ConnectionRefusedError:
        return Seen.REFUSED
    except TimeoutError:
        return Seen.SILENT
    except OSError:
        return Seen.ALIVE
    return Seen.HEALTHY if re.match(rb"HTTP/1\.[01] 200\b", answer) else Seen.ALIVE


def _begun(connection: socket.socket, deadline: float) -> bytes:
    """An answer up to the end of its headers. Raises TimeoutError at the deadline, even while bytes arrive."""
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < _LONGEST_HEADERS:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(left)
        if not (part := connection.recv(_LONGEST_HEADERS)):
            break
        answer += part
    return answer


@dataclass(frozen=True)
class End:
    """How one start of the server ended. With a `code`, it is not started again."""

    what: str
    was_steady: bool = False
    code: int | None = None


class Supervisor:
    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], host: str, port: int, limits: Limits
    ) -> None:
        self._command = command
        self._environment = environment
        self._address = host, port
        self._limits = limits
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def ask_to_end(self, number: int) -> None:
        """Passes a signal on and lets `run` return; at once for a second signal. May be called in signal handlers."""
        self._signals.put(number)

    def run(self) -> int:
        """Returns 0 once it was told to end, and 2 when the server refuses its arguments."""
        pauses = self._limits.pauses()
        while True:
            started = time.monotonic()
            try:
                end = self._live()
            except OSError as error:  # no room for a folder, or no memory for a process
                end = End(f"could not be started ({error})")
            if end.code is not None:
                return end.code
            if end.was_steady:
                pauses = self._limits.pauses()
            pause = next(pauses)
            complain(f"vLLM {end.what} after {time.monotonic() - started:.0f} s; it starts again in {pause:g} s")
            if self._signal_within(pause) is not None:
                return 0

    def _live(self) -> End:
        """From one start of the server to its end."""
        watch = Watch(self._limits)
        with _temporary_folder() as folder:
            with Group(self._command, {**self._environment, "TMPDIR": folder}) as group:
                while group.exit_code is None and watch.flaw is None:
                    if (number := self._signal_within(self._limits.period, group)) is not None:
                        group.send(number)
                        self._signal_within(self._limits.stop, group)
                        return End("was told to end", code=0)
                    watch.note(look(*self._address))
                code = group.exit_code
            if code == _USAGE and not watch.has_answered:
                complain(f"vLLM does not take its arguments, start it with others: {group.last_line}")
                return End("does not take its arguments", code=_USAGE)
            return End(_told(code, group.last_line) if code is not None else f"{watch.flaw}", watch.was_steady)

    def _signal_within(self, seconds: float, group: Group | None = None) -> int | None:
        """A signal to end, when one arrives before the time is over and before the group's command has ended."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and (group is None or group.exit_code is None):
            with suppress(queue.Empty):
                return self._signals.get(timeout=min(left, _TICK_S))
        return None


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """For one start's files, half downloads of weights among them, which a killed server leaves. But what torch has
    compiled stays where it would be: it has no setting for all of it.
    """
    kept = Path(gettempdir(), f"torchinductor_{_user()}")
    with TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True) as folder:
        kept.mkdir(exist_ok=True)
        Path(folder, kept.name).symlink_to(kept)
        yield folder


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid_{os.getuid()}"


def _told(code: int, last_line: str) -> str:
    if code < 0:
        return f"was ended by signal {-code} ({signal.strsignal(-code)})"
    return f"ended with exit code {code}" + (f" and the line {last_line!r}" if code and last_line else "")
