"""A long run in which something goes wrong every few syncs, and what is found at its end.

In its first part trainer and vLLM are killed; the rest is one life of each process, in which nothing may grow.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

import psutil

from tests.faults.chance import Chance
from tests.faults.digest import digest
from tests.faults.meter import Meter
from tests.faults.reading import Read, read_back
from tests.faults.stage import Stage
from tests.faults.story import first, following
from tests.faults.training import Task, Training
from tests.faults.vllm_processes import API, CORE, WORKER, part_of
from tests.space_vllm.tiny import live_checksums

PATIENCE_S = 300.0
_DEADLINE_S = PATIENCE_S + 60
_KILLING = 0.4  # the share of syncs in which something may be killed
_SAVED, _SAMPLED = 10, 5  # sync points between two
_MAX_STALENESS = 1


@dataclass
class LongRun:
    """Until `syncs` versions are acknowledged. `is_right`: the final weights are, in the Space and in the bucket."""

    stage: Stage
    syncs: int
    vllm_kills: int
    chance: Chance
    tell: Callable[[str], None]
    meters: dict[str, Meter] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    longest_wait_s: float = 0.0
    longest_sync_s: float = 0.0
    is_right: bool = False
    found: Read | None = None

    def play(self) -> None:
        self._run_id, self._seed, self._lives = f"soak-{uuid4().hex[:8]}", next(self.stage.seeds), 0
        self._trainer = self._start()
        try:
            self._trainer.save()
            kills = [int(self.syncs * _KILLING * (n + 0.5) / self.vllm_kills) for n in range(self.vllm_kills)]
            while (done := self._done()) < self.syncs:
                if kills and done >= kills[0]:
                    kills.pop(0)
                    self._kill_vllm()
                self._one(done < self.syncs * _KILLING)
                if self._trainer.points % _SAVED == 0:
                    self._trainer.save()
                    self.tell(f"{done} of {self.syncs} syncs, {dict(self.chance.counts)}")
            self._end()
        finally:
            self._trainer.kill()

    def _done(self) -> int:
        return len(self.acknowledged | {sync["version"] for sync in self._trainer.told("synced")})

    def _start(self) -> Training:
        place = self.stage.place
        self._lives += 1
        folder, url = place.folder / self._run_id, self.stage.proxy.url
        task = Task(place.name, self._run_id, url, folder, self._seed, _MAX_STALENESS, PATIENCE_S)
        trainer = Training(task, place.whole_environment(f"trainer-{self._lives}-{self._run_id}"))
        trainer.wait("point", deadline_s=_DEADLINE_S)
        return trainer

    def _one(self, may_kill: bool) -> None:
        """A sync point, with whatever goes wrong at it."""
        assert self.stage.place.hub is not None, "the bucket is the stand-in Hub"
        self.chance.before_a_point(self.stage.place.hub, self.stage.proxy)
        before = len(self._trainer.events)
        self._trainer.point()
        self.chance.cuts(self.stage.proxy)
        if may_kill and self.chance.kills():
            self.chance.moment()
            self._trainer.kill()
            self._add_up()
            self.chance.counts["ends of the trainer"] += 1
            self._trainer = self._start()
            return
        self._trainer.wait("point", since=before, deadline_s=_DEADLINE_S)
        if not may_kill and self._trainer.points % _SAMPLED == 0:
            self._look()

    def _kill_vllm(self) -> None:
        name = (WORKER, CORE, API)[self.chance.counts["ends of vLLM"] % 3]
        part_of(self.stage.server, name).kill()
        self.chance.counts["ends of vLLM"] += 1

    def _look(self) -> None:
        processes = {"trainer": psutil.Process(self._trainer.process.pid)}
        for name, part in (("API server", API), ("engine", CORE), ("worker", WORKER)):
            processes[name] = part_of(self.stage.server, part)
        for name, process in processes.items():
            self.meters.setdefault(name, Meter()).look(process)

    def _add_up(self) -> None:
        points, syncs = self._trainer.told("point"), self._trainer.told("synced")
        self.acknowledged |= {sync["version"] for sync in syncs}
        self.longest_wait_s = max([self.longest_wait_s, *(point["seconds"] for point in points)])
        self.longest_sync_s = max([self.longest_sync_s, *(sync["seconds"] for sync in syncs)])

    def _end(self) -> None:
        assert self.stage.place.hub is not None
        self.stage.place.hub.clear()
        self.stage.proxy.delay_s = 0.0
        ended = self._trainer.end()
        self._add_up()
        weights = first(self._seed)
        for step in range(1, ended["step"] + 1):
            weights = following(weights, self._seed, step)
        self.found = read_back(self.stage.place, self._run_id, "--newest")
        in_bucket = self.found.versions[self.found.newest]["digest"] == digest(weights)
        self.is_right = in_bucket and self.stage.server.checksums() == live_checksums(weights, "float32")
