"""What every package's tests share: free ports, real processes that never outlive their test, and the suite's order.

Knows nothing of what the processes do; what a server answers is its own test's business.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOG_TAIL_LINES = 40
STOP_DEADLINE_S = 15.0
POLL_S = 0.1


@dataclass(frozen=True)
class RunningProcess:
    """A started command; its output, both streams, is in `log`."""

    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.output().splitlines()[-LOG_TAIL_LINES:])

    def wait(self, deadline_s: float) -> int:
        """The exit code; fails the test when the process still runs after deadline_s seconds."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return pytest.fail(f"still running after {deadline_s} s; its last lines:\n{self.tail()}")

    def wait_for_200(self, url: str, deadline_s: float) -> None:
        """Fails the test, with the log's tail, when the process ends first or the deadline passes."""
        deadline = time.monotonic() + deadline_s
        while not _answers_200(url):
            if self.process.poll() is not None:
                pytest.fail(f"exit code {self.process.returncode} before {url} answered:\n{self.tail()}")
            if time.monotonic() > deadline:
                pytest.fail(f"{url} did not answer 200 within {deadline_s} s:\n{self.tail()}")
            time.sleep(POLL_S)

    def stop(self) -> int:
        """SIGTERM, then SIGKILL after a deadline; returns the exit code. Harmless on a process that has ended."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where two processes share the suite, each takes the next module: slow ones first, so that both end together."""
    if hasattr(config, "workerinput"):
        slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])


class StartProcess(Protocol):
    def __call__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        deadline_s: float = 60.0,
    ) -> RunningProcess: ...


def _answers_200(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A port of 127.0.0.1 that nothing listens on; another one at each call."""
    given: set[int] = set()

    def find() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in given:
                given.add(port)
                return port

    return find


@pytest.fixture
def process(tmp_path: Path) -> Iterator[StartProcess]:
    """Starts a command from the checkout's root; with `url`, returns once that answers 200.

    `env` is added to this process's environment. All are stopped at the test's end, the last one first.
    """
    started: list[RunningProcess] = []

    def start(
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        deadline_s: float = 60.0,
    ) -> RunningProcess:
        log = tmp_path / f"process-{len(started)}.log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(env or {})}
        with log.open("wb") as out:
            child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
        running = RunningProcess(child, log)
        started.append(running)
        if url is not None:
            running.wait_for_200(url, deadline_s)
        return running

    yield start
    for running in reversed(started):
        running.stop()
