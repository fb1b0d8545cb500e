"""One background thread that turns the bucket and the units' answers into a snapshot every two seconds.

Knows where things are read from, not how they are shown. Run files and manifests never change, so each is read once;
whoever shows a snapshot never waits for the bucket.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from shared import layout
from shared.bucket import Bucket
from shared.errors import MissingFileError, SyncError
from shared.monitor.units import Answer, Unit, ask_all
from shared.reader import RunReader
from shared.types import Manifest, Run

PERIOD_S = 2.0


@dataclass(frozen=True)
class Snapshot:
    """What was known at one moment. `number` is 0 before the first look and grows with every change.

    `problem` says why the bucket could not be read; run and manifests are then the last that could. Manifests are in
    the order of their versions.
    """

    bucket: str
    number: int = 0
    run: Run | None = None
    manifests: tuple[Manifest, ...] = ()
    problem: str = ""
    units: Mapping[str, Answer] = field(default_factory=dict)


class Poller:
    """`run_id` None follows the newest run. A context manager: the thread runs inside it."""

    def __init__(self, bucket: Bucket, run_id: str | None = None, units: Mapping[str, Unit] | None = None) -> None:
        self._bucket = bucket
        self._wanted = run_id
        self._units = units or {}
        self._runs: dict[str, Run] = {}
        self._reader: tuple[Run, RunReader] | None = None
        self._snapshot = Snapshot(bucket.name)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="monitor-poller", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(PERIOD_S)

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def alive(self) -> bool:
        return self._thread.is_alive()

    def poll(self) -> None:
        """Make the next snapshot."""
        known = self._snapshot
        try:
            run, manifests = self._read()
            found = replace(known, run=run, manifests=manifests, problem="")
        except SyncError as error:
            found = replace(known, problem=str(error))
        found = replace(found, units=ask_all(self._units))
        if found != known or known.number == 0:
            self._snapshot = replace(found, number=known.number + 1)

    def _work(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(PERIOD_S)

    def _read(self) -> tuple[Run | None, tuple[Manifest, ...]]:
        self._read_new_runs()
        if not self._runs:
            return None, ()
        run = max(self._runs.values(), key=lambda run: (run.created_at, run.run_id))
        if self._reader is None or self._reader[0] != run:
            self._reader = run, RunReader(self._bucket, run.run_id)
        return run, tuple(sorted(self._reader[1].manifests(), key=lambda manifest: manifest.version))

    def _read_new_runs(self) -> None:
        folders = [name for name in self._bucket.folders() if self._wanted in (None, name)]
        self._runs = {name: run for name, run in self._runs.items() if name in folders}
        for name in folders:
            path = layout.run_file(name)
            if name not in self._runs:
                try:
                    self._runs[name] = Run.from_json(self._bucket.read(path), path)
                except MissingFileError:
                    continue  # a folder of something else, or a run that is being created
