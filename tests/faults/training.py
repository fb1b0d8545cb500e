"""A trainer process from outside: what it is told, what it tells, and signals to it."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.conftest import ROOT
from tests.faults.cores import beside_vllm

Event = dict[str, Any]

DEADLINE_S = 300.0


@dataclass(frozen=True)
class Task:
    """What a trainer is started with. `folder` is that of its checkpoint and its log."""

    bucket: str
    run_id: str
    url: str
    folder: Path
    seed: int
    max_staleness: int = 64
    patience_s: float = 240.0

    def command(self) -> list[str]:
        given = {
            "bucket": self.bucket,
            "run-id": self.run_id,
            "url": self.url,
            "folder": self.folder,
            "seed": self.seed,
            "max-staleness": self.max_staleness,
            "patience": self.patience_s,
        }
        options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
        return [sys.executable, "-m", "tests.faults.trainer", *options]


class Training:
    """A context, which ends the process. `events` are what it told, `points` counts what it was told to take."""

    def __init__(self, task: Task, environment: Mapping[str, str]) -> None:
        self.events: list[Event] = []
        self.points = 1  # that of the weights it starts with
        task.folder.mkdir(parents=True, exist_ok=True)
        self._log = task.folder / "log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                beside_vllm(task.command()),
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._changed = threading.Condition()
        self._has_ended = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    # What it is told

    def point(self) -> None:
        """Take a step and a sync point."""
        self.points += 1
        self._tell("point")

    def anchor(self) -> None:
        """The next version is to be an anchor."""
        self._tell("anchor")

    def halt_before(self, place: str) -> None:
        """Before the next write of a path in which this occurs."""
        self._tell(f"halt {place}")

    def go_on(self) -> None:
        self._tell("go")

    def save(self) -> None:
        """Make a checkpoint; returns when it is whole."""
        before = len(self.events)
        self._tell("save")
        self.wait("saved", since=before)

    def end(self) -> Event:
        """Bring the Space to the final weights, and end."""
        self._tell("end")
        return self.wait("ended")

    def train_until_stopped(self) -> Event:
        """Takes sync points until it stops by itself."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.told("stopped"):
            assert time.monotonic() < deadline, f"the trainer did not stop: {self.events[-6:]}"
            if self.is_free:
                self.point()
            time.sleep(0.1)
        return self.wait("stopped")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # what it was told last has not been read
                assert pipe is not None
                pipe.close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def continue_(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    # What it tells

    @property
    def is_free(self) -> bool:
        """Whether it has taken all sync points that it was told to."""
        return self.process.poll() is None and len(self.told("point")) == self.points

    def told(self, event: str) -> list[Event]:
        return [one for one in list(self.events) if one["event"] == event]

    def whole(self) -> set[int]:
        """The versions whose manifests it has written."""
        paths = [Path(one["path"]) for one in self.told("written")]
        return {int(path.stem) for path in paths if path.parent.name == "manifests" and path.stem.isdecimal()}

    def wait(
        self,
        event: str,
        met: Callable[[Event], bool] = lambda event: True,
        since: int = 0,
        deadline_s: float = DEADLINE_S,
    ) -> Event:
        """The first such event, but for the first `since` ones. Fails when the process ends without it."""

        def found() -> list[Event]:
            return [one for one in self.events[since:] if one["event"] == event and met(one)]

        with self._changed:
            self._changed.wait_for(lambda: found() or self._has_ended, deadline_s)
            fits = found()
        assert fits, f"the trainer did not tell {event!r}: {self.events[-6:]}\n{self.log()}"
        return fits[0]

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it has ended, which whoever waits for it will see
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
