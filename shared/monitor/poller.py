"""One background thread that turns the bucket and the units' answers into snapshots, for whoever looks.

Knows when to look, not how anything is shown. All viewers of a run read the same snapshot and wait for nobody. The
units are asked only while someone looks, so that a page which nobody has open keeps no paid Space awake.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from shared import layout
from shared.bucket import LOCAL, Bucket
from shared.errors import IntegrityError, SyncError
from shared.monitor.history import KEPT_ROLLOUTS, History
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Asked, Questions
from shared.reader import parsed_run
from shared.types import Run

PERIOD_S = 2.0
IDLE_PERIOD_S = 30.0
LOOKED_S = 10.0
"""Someone who has looked within this time is looking still."""
RUNS_PERIOD_S = 20.0
"""How often the Hub is asked for its runs."""
_LEAVE_S = 0.5


@dataclass(frozen=True)
class Units:
    """Whom to ask. `replicas` are vLLM Spaces, by the names that they are shown under."""

    replicas: Mapping[str, Asked] = field(default_factory=dict)
    environment: Asked | None = None


@dataclass
class _View:
    """One choice of a run. `wanted` are versions whose rollouts someone reads, and when last, in that order."""

    snapshot: Snapshot
    looked_at: float
    wanted: dict[int, float] = field(default_factory=dict)

    def want(self, version: int, now: float) -> bool:
        """Whether that is new, and there was room for it."""
        is_new, is_full = self.wanted.pop(version, None) is None, len(self.wanted) >= KEPT_ROLLOUTS
        if is_full:
            del self.wanted[next(iter(self.wanted))]
        self.wanted[version] = now
        return is_new and not is_full

    def forget(self, now: float) -> None:
        self.wanted = {version: at for version, at in self.wanted.items() if now - at < LOOKED_S}


class Poller:
    """`run_id` None follows the newest run. A context manager: the thread runs inside it."""

    def __init__(
        self,
        bucket: Bucket,
        run_id: str | None = None,
        units: Units | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        units = units or Units()
        self._bucket = bucket
        self._clock = clock
        self._replicas = Questions(units.replicas)
        self._environment = Questions({"": units.environment} if units.environment else {})
        self._runs: dict[str, Run] = {}
        self._runs_at = self._due = clock()
        self._histories: dict[str, History] = {}
        self._found = Snapshot(bucket.name, pinned=run_id or "", asked=tuple(units.replicas))  # what is of no one run
        self._views = {"": _View(self._found, -LOOKED_S)}
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
        """Whatever is being asked or read is given up."""
        self._stopping = True
        self._wake.set()
        self._thread.join(_LEAVE_S)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def look(self, run_id: str = "", version: int | None = None) -> Snapshot:
        """What is known now of a run, the one that is followed where there is no such run. Answers at once; with a
        `version`, a later snapshot will have that version's rollouts."""
        now = self._clock()
        with self._lock:
            key = run_id if run_id in self._runs else ""
            is_new = key not in self._views
            if not self._is_watched(now):
                self._due, is_new = now, True
            view = self._views.setdefault(key, _View(self._views[""].snapshot, now))
            view.looked_at = now
            if version is not None and version in view.snapshot.rollout_versions:
                is_new |= view.want(version, now)
            snapshot = view.snapshot
        if is_new:
            self._wake.set()
        return snapshot

    def turn(self) -> float:
        """Do what is to be done now. The seconds until the next turn, unless a look wakes the thread before: what was
        picked is read then, and nothing else is asked or read more often for that."""
        now = self._clock()
        if now < self._due:
            self._read_histories(now, anew=False)
            self._publish_all()
        else:
            self._due = math.inf  # a look may set it meanwhile
            self.poll()
            now = self._clock()
            with self._lock:
                self._due = min(self._due, now + (PERIOD_S if self._is_watched(now) else IDLE_PERIOD_S))
        is_behind = any(history.is_behind for history in self._histories.values())
        return 0.0 if is_behind else max(0.0, self._due - now)

    def poll(self) -> None:
        """Ask and read all anew, and make the next snapshots."""
        now = self._clock()
        with self._lock:
            self._forget(now)
            is_watched = self._is_watched(now)
        if is_watched:
            self._replicas.ask()
            self._environment.ask()
        self._read_runs(now)
        self._read_histories(now, anew=True)
        replicas = self._replicas.answers() if is_watched else {}
        environment = self._environment.answers().get("") if is_watched else None
        self._found = replace(self._found, replicas=replicas, environment=environment)
        self._publish_all()

    def _work(self) -> None:
        while not self._stopping:
            self._wake.clear()
            self._wake.wait(self.turn())

    def _is_watched(self, now: float) -> bool:
        return any(now - view.looked_at < LOOKED_S for view in self._views.values())

    def _forget(self, now: float) -> None:
        """Runs and versions that nobody looks at any more are not read any more."""
        self._views = {key: view for key, view in self._views.items() if not key or now - view.looked_at < LOOKED_S}
        for view in self._views.values():
            view.forget(now)

    def _read_runs(self, now: float) -> None:
        if now < self._runs_at:
            return
        try:
            self._read_run_files()
        except SyncError as error:
            self._found = replace(self._found, problem=str(error))
        else:
            self._runs_at = now if self._bucket.name.startswith(LOCAL) else now + RUNS_PERIOD_S

    def _read_run_files(self) -> None:
        """All of them each time: a run may have been replaced by one of the same id."""
        folders = {layout.run_file(name): name for name in self._bucket.folders()}
        runs, unreadable = dict[str, Run](), []
        for path, raw in (self._bucket.read_all(list(folders)) if folders else {}).items():
            try:
                runs[folders[path]] = parsed_run(raw, folders[path])
            except IntegrityError as error:
                unreadable.append(str(error))
        pinned = self._found.pinned
        self._runs = {name: run for name, run in runs.items() if pinned in ("", name)}
        in_order = tuple(sorted(self._runs.values(), key=lambda run: run.age, reverse=True))
        others = tuple(sorted(runs.keys() - self._runs.keys()))
        self._found = replace(self._found, runs=in_order, others=others, unreadable=tuple(unreadable), problem="")

    def _run_of(self, key: str) -> Run | None:
        """The newest one where there is no such run."""
        return self._runs.get(key) or next(iter(self._found.runs), None)

    def _read_histories(self, now: float, anew: bool) -> None:
        """Each once for all who look at it. Without `anew`, only what is not known yet."""
        with self._lock:
            chosen = [(self._run_of(key), tuple(view.wanted)) for key, view in self._views.items()]
        wanted: dict[Run, list[int]] = {}
        for run, versions in chosen:
            if run is not None:
                wanted.setdefault(run, []).extend(versions)
        self._histories = {run.run_id: self._history(run) for run in wanted}
        for history in self._histories.values() if not self._found.problem else ():
            (history.look if anew or history.is_new else history.read_on)(now, wanted[history.run])

    def _history(self, run: Run) -> History:
        known = self._histories.get(run.run_id)
        return known if known is not None and known.run == run else History(self._bucket, run)

    def _publish_all(self) -> None:
        with self._lock:
            for key, view in self._views.items():
                self._publish(view, self._of(key, view))

    def _of(self, key: str, view: _View) -> Snapshot:
        run, found = self._run_of(key), self._found
        if found.problem:
            known, problem = view.snapshot, found.problem
            return replace(known, problem=problem, replicas=found.replicas, environment=found.environment)
        if run is None:
            return found
        history = self._histories.get(run.run_id)
        return history.written_on(found) if history else view.snapshot

    def _publish(self, view: _View, found: Snapshot) -> None:
        before = view.snapshot
        found = replace(found, arrived_at=_arrival(before, found))
        if before.number and replace(found, number=before.number) == before:
            return
        self._number += 1
        view.snapshot = replace(found, number=self._number)


def _arrival(before: Snapshot, found: Snapshot) -> datetime | None:
    """When the newest version came."""
    if before.run is None or before.run != found.run:
        return None
    has_newer = found.newest is not None and (before.newest is None or before.newest.version < found.newest.version)
    return datetime.now(UTC) if has_newer else before.arrived_at
