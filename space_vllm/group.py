"""A command and every process that it starts, as one process group: none of them outlives it, or this process.

Knows processes, not what they do. One that leaves the group for its own is out of reach: it goes on, without a reader
of its output.
"""

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from shared import output

_TIDY_S, _END_S, _POLL_S, _IDLE_S = 2.0, 10.0, 0.02, 0.2
_TAIL_BYTES = 1 << 13

# Leads the group and kills it when its standard input ends, which it does however this process ends. One guard for the
# whole group: prctl(PR_SET_PDEATHSIG) concerns a single process and is lost in each fork, so every process that vLLM
# starts would have to set it anew, and would be an orphan until it had.
_GUARD = "import os, signal, sys; sys.stdin.read(); os.killpg(0, signal.SIGKILL)"


class Group:
    """Started on entering, ended on leaving. What it prints goes to standard output."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._tail = b""
        self._read_until = math.inf

    def __enter__(self) -> Self:
        """Raises OSError when the command cannot be started."""
        self._guard = subprocess.Popen([sys.executable, "-I", "-c", _GUARD], stdin=subprocess.PIPE, process_group=0)
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=self._guard.pid,
            )
        except OSError:
            self._guard.communicate()
            raise
        self._relay = Thread(target=self._pass_on, daemon=True)
        self._relay.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what is left, and return when it is gone."""
        for process in self._members():
            if process != self._guard.pid and not _is_tracker(process):
                _kill(process)
        self._read_until = time.monotonic() + _TIDY_S
        # The trackers remove shared memory of the others, which would stay otherwise.
        self._relay.join(_TIDY_S + 2 * _IDLE_S)
        with suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        deadline = time.monotonic() + _END_S
        while self._members() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._bury()

    @property
    def exit_code(self) -> int | None:
        """The command's, as of subprocess: None while it runs, negative when it was killed."""
        return self._process.poll()

    @property
    def last_line(self) -> str:
        """What was printed last, but for frames of a traceback and what trackers say at the end."""
        lines = self._tail.decode(errors="replace").splitlines()
        told = [line for line in lines if line and not line[0].isspace() and "resource_tracker" not in line]
        return told[-1] if told else ""

    def send(self, number: int) -> None:
        """A signal, to the command alone."""
        self._process.send_signal(number)

    def _pass_on(self) -> None:
        """Goes on reading when nobody wants the output any more."""
        pipe = self._process.stdout
        assert pipe is not None
        with pipe:
            while part := self._next_part(pipe.fileno()):
                self._tail = (self._tail + part)[-_TAIL_BYTES:]
                output.write(sys.stdout, part)

    def _next_part(self, pipe: int) -> bytes:
        """Empty at the end, for which a process that has left the group is not waited."""
        while time.monotonic() < self._read_until:
            if select.select([pipe], [], [], _IDLE_S)[0]:
                return os.read(pipe, _TAIL_BYTES)
        return b""

    def _bury(self) -> None:
        """Ask for exit codes: also for those of orphans, which are process 1's in a container."""
        self._process.poll()
        self._guard.communicate()
        with suppress(ChildProcessError):
            while os.waitpid(-self._guard.pid, os.WNOHANG) != (0, 0):
                pass

    def _members(self) -> list[int]:
        """The processes that hold anything: not those of which only the exit code is left."""
        found = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has gone meanwhile
                fields = file.read_bytes().rpartition(b")")[2].split()
                state, group, threads = fields[0], int(fields[2]), int(fields[17])
                if group == self._guard.pid and not (state == b"Z" and threads == 1):
                    found.append(int(file.parent.name))
        return found


def _is_tracker(process: int) -> bool:
    """Of Python's multiprocessing: it ends by itself, after the processes whose shared memory it tracks."""
    with suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
