"""One row as it is played: its run and trainer, the moment of the fault, and what is found at the end.

A row keeps its promise when a newer verified version is served after the fault, no client was answered from anything
but published weights, and no version is lost.
"""

import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.faults.clients import Asked, Judge
from tests.faults.digest import digest
from tests.faults.reading import read_back
from tests.faults.stage import Stage
from tests.faults.story import Story
from tests.faults.training import DEADLINE_S, Task, Training
from tests.hub import StandIn
from tests.space_vllm.live_server import Server
from tests.space_vllm.tiny import Weights, live_checksums

RECOVERY_S = 400.0
_POINT_S, _LOOK_S = 1.0, 0.1


@dataclass(frozen=True)
class Fault:
    """When it began, by `monotonic`, what was served then, and the versions that were whole."""

    began: float
    served: int
    whole: frozenset[int]


@dataclass(frozen=True)
class Outcome:
    seconds: float
    unverified_tokens: int
    lost: int

    @property
    def is_kept(self) -> bool:
        return not self.unverified_tokens and not self.lost


@dataclass
class Scene:
    """Version 0, an anchor, and version 1, a delta on it, are served, and the trainer has saved at version 1."""

    stage: Stage
    run_id: str
    story: Story
    trainer: Training
    fault: Fault | None = None
    seconds: float | None = None
    destroyed: set[int] = field(default_factory=set)
    _trainers: list[Training] = field(default_factory=list)

    @property
    def server(self) -> Server:
        return self.stage.server

    @property
    def hub(self) -> StandIn:
        assert self.stage.place.hub is not None, "this row is played with the stand-in Hub"
        return self.stage.place.hub

    # The trainer

    def trainer_starts(self, **environment: str) -> Training:
        """Another one on the same run and checkpoint, which is `trainer` from now on."""
        self.trainer = new_trainer(self.stage, self.run_id, self.story.seed, len(self._trainers), **environment)
        self._trainers.append(self.trainer)
        return self.trainer

    def other_host(self) -> Path:
        """A TMPDIR: the locks of a bucket on the Hub are kept there, and seen by nobody with another one."""
        folder = self.stage.place.folder / f"host-{self.run_id}"
        folder.mkdir()
        return folder

    # The fault

    def fault_begins(self) -> None:
        whole = set[int]().union(*(trainer.whole() for trainer in self._trainers))
        self.fault = Fault(time.monotonic(), self.served_version(), frozenset(whole))

    def recovers(self) -> None:
        """The trainer takes sync points until a version newer than at the fault is served."""
        if self.seconds is not None:
            return
        assert self.fault is not None, "the row tells no moment of its fault"
        deadline, next_point = self.fault.began + RECOVERY_S, 0.0
        while not self._serves(self.fault.served + 1):
            now = time.monotonic()
            assert now < deadline, f"no newer version is served after {RECOVERY_S:.0f} s: {self._told()}"
            if now >= next_point and self.trainer.is_free:
                self.trainer.point()
                next_point = now + _POINT_S
            time.sleep(_LOOK_S)
        self.seconds = time.monotonic() - self.fault.began

    def wait_until(self, met: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not met():
            assert time.monotonic() < deadline, f"not in time: {what}: {self._told()}"
            time.sleep(_LOOK_S)

    def wait_for_state(self, state: str) -> None:
        self.server.wait_until(lambda now: now["state"] == state, f"the Space is {state}")

    def served_version(self) -> int:
        """-1 for none of this run, or where nobody answers."""
        status = self._status()
        return int(status["version"]) if status.get("run_id") == self.run_id else -1

    # The end

    def ends(self, asked: Asked) -> Outcome:
        assert self.fault is not None and self.seconds is not None
        ended = self.trainer.end()
        version, weights = int(ended["version"]), self.story.weights(int(ended["step"]))
        assert self._serves(version), f"version {version} is not served at the end: {self._told()}"
        assert self.server.checksums() == live_checksums(weights, self.server.dtype), "other weights are live"
        asked.wait_for_each()
        found = read_back(self.stage.place, self.run_id)
        versions, newest = found.versions, found.versions[found.newest]
        assert found.newest == version, f"the bucket's newest version is {found.newest}, the trainer's {version}"
        assert newest["digest"] == digest(weights), f"a fresh reader gets other weights: {newest['error']}"
        return Outcome(self.seconds, self._judge(versions).unverified(asked.answers), self._lost(versions))

    def _judge(self, versions: Mapping[int, Mapping[str, Any]]) -> Judge:
        return Judge([self._weights(told["fingerprint"]) for _, told in sorted(versions.items())])

    def _lost(self, versions: Mapping[int, Mapping[str, Any]]) -> int:
        """Whole before the fault or since, not deleted on purpose, and a fresh reader does not get their bits."""
        assert self.fault is not None
        anchors = sorted(version for version, told in versions.items() if told["kind"] == "anchor")
        kept = {version for version in self.fault.whole | versions.keys() if version >= anchors[-2:][0]}
        return sum(not self._is_right(versions.get(version)) for version in kept - self.destroyed)

    def _is_right(self, told: Mapping[str, Any] | None) -> bool:
        return told is not None and told["digest"] == digest(self._weights(told["fingerprint"]))

    def _weights(self, fingerprint: str) -> Weights:
        steps = max(event["step"] for trainer in self._trainers for event in trainer.told("point"))
        known = self.story.known(steps + 1)
        assert fingerprint in known, f"a version has fingerprint {fingerprint}, which the trainer never had"
        return known[fingerprint]

    def _serves(self, version: int) -> bool:
        status = self._status()
        if status.get("run_id") != self.run_id or status["state"] != "serving" or status["version"] < version:
            return False
        return self.server.is_healthy()

    def _status(self) -> dict[str, Any]:
        try:
            return self.server.status()
        except (OSError, http.client.HTTPException, ValueError, AssertionError):
            return {}

    def _told(self) -> str:
        return f"{self._status()}; {self.trainer.events[-8:]}\n{self.server.running.tail()}"


@contextmanager
def scene(stage: Stage) -> Iterator[Scene]:
    story, run_id = Story(next(stage.seeds)), f"row-{uuid4().hex[:8]}"
    trainer = new_trainer(stage, run_id, story.seed, 0)
    found = Scene(stage, run_id, story, trainer, _trainers=[trainer])
    try:
        trainer.wait("point")
        trainer.point()
        trainer.wait("synced", lambda event: event["version"] == 1)
        trainer.save()
        yield found
    finally:
        for one in found._trainers:
            one.kill()


def new_trainer(stage: Stage, run_id: str, seed: int, number: int, **environment: str) -> Training:
    place = stage.place
    task = Task(place.name, run_id, stage.proxy.url, place.folder / run_id, seed)
    return Training(task, {**place.whole_environment(f"trainer-{number}-{run_id}"), **environment})
