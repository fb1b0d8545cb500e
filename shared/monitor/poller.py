"""One background thread that turns the bucket and the units' answers into snapshots, for whoever looks.

Knows when to look, not how anything is shown. All viewers of a run read the same snapshot and wait for nobody. The
units are asked only while someone looks, so that a page which nobody has open keeps no paid Space awake.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from shared import layout
from shared.bucket import LOCAL, Bucket
from shared.errors import MissingFileError, SyncError
from shared.monitor.history import History
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer, Asked
from shared.types import Run

PERIOD_S = 2.0
IDLE_PERIOD_S = 30.0
LOOKED_S = 10.0
"""Someone who has looked within this time is looking still."""
RUNS_PERIOD_S = 10.0
"""How often the Hub is asked for its runs."""


@dataclass(frozen=True)
class Units:
    """Whom to ask. `replicas` are vLLM Spaces, by the names that they are shown under."""

    replicas: Mapping[str, Asked] = field(default_factory=dict)
    environment: Asked | None = None


@dataclass
class _View:
    """One choice of a run. `wanted` are versions whose rollouts someone wants to read."""

    snapshot: Snapshot
    looked_at: float
    wanted: set[int] = field(default_factory=set)


class Poller:
    """`run_id` None follows the newest run. A context manager: the thread runs inside it."""

    def __init__(
        self,
        bucket: Bucket,
        run_id: str | None = None,
        units: Units | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket = bucket
        self._pinned = run_id
        self._units = units or Units()
        self._clock = clock
        self._runs: dict[str, Run] = {}
        self._runs_at = clock()
        self._histories: dict[str, History] = {}
        self._nothing = Snapshot(bucket.name, asked=tuple(self._units.replicas))
        self._views = {"": _View(self._nothing, -LOOKED_S)}
        self._number = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="monitor-poller", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join(PERIOD_S)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def look(self, run_id: str = "", version: int | None = None) -> Snapshot:
        """What is known now of a run, the one that is followed where there is no such run. Answers at once; with a
        `version`, a later snapshot will have that version's rollouts."""
        now = self._clock()
        with self._lock:
            first = self._views[""].snapshot
            view = self._views.setdefault(run_id if run_id in self._runs else "", _View(first, now))
            is_new = not self._is_watched(now) or view.snapshot.run is None
            view.looked_at = now
            if version is not None and version in view.snapshot.rollout_versions:
                is_new |= version not in view.snapshot.rollouts
                view.wanted.add(version)
            snapshot = view.snapshot
        if is_new:
            self._wake.set()
        return snapshot

    def poll(self) -> None:
        """Make the next snapshots."""
        now = self._clock()
        with self._lock:
            self._forget(now)
            chosen = {key: (view.snapshot, set(view.wanted)) for key, view in self._views.items()}
            is_watched = self._is_watched(now)
        replicas, environment = self._ask() if is_watched else ({}, None)
        problem = self._read_runs(now)
        for key, (before, wanted) in chosen.items():
            found = replace(before, problem=problem, replicas=replicas, environment=environment)
            self._publish(key, before, found if problem else self._read(key, found, now, wanted))

    def _work(self) -> None:
        while not self._stopping:
            self._wake.clear()
            self.poll()
            if not any(history.is_behind for history in self._histories.values()):
                self._wake.wait(PERIOD_S if self._is_watched(self._clock()) else IDLE_PERIOD_S)

    def _is_watched(self, now: float) -> bool:
        return any(now - view.looked_at < LOOKED_S for view in self._views.values())

    def _forget(self, now: float) -> None:
        """Runs that nobody looks at any more are not read any more."""
        self._views = {key: view for key, view in self._views.items() if not key or now - view.looked_at < LOOKED_S}

    def _ask(self) -> tuple[dict[str, Answer], Answer | None]:
        """All at once: one that does not answer holds up none of the others."""
        units = self._units
        with ThreadPoolExecutor(max_workers=1 + len(units.replicas)) as pool:
            environment = pool.submit(units.environment.ask) if units.environment else None
            answers = list(pool.map(lambda unit: unit.ask(), units.replicas.values()))
            replicas = dict(zip(units.replicas, answers, strict=True))
            return replicas, environment.result() if environment else None

    def _read_runs(self, now: float) -> str:
        """The problem with that, if any."""
        if self._runs and now < self._runs_at:
            return ""
        try:
            self._read_new_runs()
        except SyncError as error:
            return str(error)
        self._runs_at = now if self._bucket.name.startswith(LOCAL) else now + RUNS_PERIOD_S
        self._histories = {
            run_id: history for run_id, history in self._histories.items() if self._runs.get(run_id) == history.run
        }
        return ""

    def _read_new_runs(self) -> None:
        folders = [name for name in self._bucket.folders() if self._pinned in (None, name)]
        runs = {name: run for name, run in self._runs.items() if name in folders}
        for name in folders:
            path = layout.run_file(name)
            if name not in runs:
                with suppress(MissingFileError):  # a folder of something else, or a run that is being created
                    runs[name] = Run.from_json(self._bucket.read(path), path)
        self._runs = runs

    def _read(self, key: str, found: Snapshot, now: float, wanted: set[int]) -> Snapshot:
        runs = tuple(sorted(self._runs.values(), key=lambda run: run.age, reverse=True))
        run = self._runs.get(key) or (runs[0] if runs else None)
        if run is None:
            return replace(self._nothing, number=found.number, replicas=found.replicas, environment=found.environment)
        history = self._histories.setdefault(run.run_id, History(self._bucket, run))
        problem = ""
        try:
            history.look(now, wanted)
        except SyncError as error:
            problem = str(error)
        return history.written_on(replace(found, runs=runs, problem=problem))

    def _publish(self, key: str, before: Snapshot, found: Snapshot) -> None:
        if found == before and before.number:
            return
        found = replace(found, arrived_at=_arrival(before, found))
        with self._lock:
            self._number += 1
            if key in self._views:
                self._views[key].snapshot = replace(found, number=self._number)


def _arrival(before: Snapshot, found: Snapshot) -> datetime | None:
    """When the newest version came."""
    if before.run is None or before.run != found.run:
        return None
    has_newer = found.newest is not None and (before.newest is None or before.newest.version < found.newest.version)
    return datetime.now(UTC) if has_newer else before.arrived_at
