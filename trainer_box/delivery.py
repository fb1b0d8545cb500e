"""Brings one version at a time to the Space, on a thread of its own: published, announced, acknowledged.

Knows the order of these and what follows when one fails; nothing of training, which goes on meanwhile. What may pass
by itself is tried again for as long as it takes; what cannot is kept for whoever asks.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from shared import layout, strict_json
from shared.bucket import Bucket
from shared.errors import BucketError, FencedError, IntegrityError, SyncError
from shared.output import say
from shared.types import Json, Manifest
from trainer_box.replica import Acknowledgement, NeedsAnchorError, Pending

_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 30.0
_UNDER_WAY_S = 0.5
_LEAVE_S = 5.0
_LOG = logging.getLogger(__name__)

Report = Callable[[str], None]


class Settling(Protocol):
    """The publisher, once a version was handed to it."""

    def housekeeping(self) -> Callable[[], None] | None: ...

    def settle(self) -> Manifest | None: ...

    def rebase(self) -> None: ...


class Space(Protocol):
    """Where versions are announced, once per call."""

    def update(self, bucket: str, manifest: Manifest) -> Acknowledgement | Pending: ...


@dataclass(frozen=True)
class Parcel:
    """A version to be. `publish` makes it whole in the bucket; `started` is when it was begun, by `perf_counter`."""

    version: int
    publish: Callable[[], Manifest]
    rollouts: Sequence[Json]
    started: float


@dataclass(frozen=True)
class Sync:
    """A version that was published and acknowledged, and the seconds from first to last."""

    manifest: Manifest
    acknowledgement: Acknowledgement
    seconds: float

    def line(self) -> str:
        """As it is logged: `sync v42 delta 6.1 MB sparsity 0.9938 | diff 0.2s ... verified`."""
        m, ack = self.manifest, self.acknowledgement
        phases = {**m.seconds, "stage": ack.stage_ms / 1000, "pause": ack.pause_ms / 1000}
        spent = " ".join(f"{name} {seconds:.2f}s" for name, seconds in phases.items())
        return f"sync v{m.version} {m.kind} {m.nbytes / 1e6:.2f} MB sparsity {m.sparsity:.4f} | {spent} verified"

    def metrics(self) -> dict[str, float]:
        """Under the names that they have where TRL reports to."""
        m, ack = self.manifest, self.acknowledgement
        return {
            "sync/payload_bytes": m.nbytes,
            "sync/changed": m.changed,
            "sync/sparsity": m.sparsity,
            **{f"sync/{phase}_s": seconds for phase, seconds in m.seconds.items()},
            "sync/stage_ms": ack.stage_ms,
            "sync/pause_ms": ack.pause_ms,
            "sync/apply_ms": ack.apply_ms,
            "sync/duration_s": self.seconds,
        }

    def note(self) -> dict[str, float]:
        """What the next version's manifest tells of this sync, whose pause comes after its own manifest."""
        return {"sync/version": self.manifest.version, **self.metrics()}

    def numbers(self) -> Json:
        m, ack = self.manifest, self.acknowledgement
        return {
            "version": m.version,
            "kind": m.kind,
            "verified": True,  # or there would be no acknowledgement
            "payload_bytes": m.nbytes,
            "changed": m.changed,
            "total": m.total,
            "sparsity": m.sparsity,
            "fingerprint": m.fingerprint,
            "stage_ms": ack.stage_ms,
            "pause_ms": ack.pause_ms,
            "apply_ms": ack.apply_ms,
            "sync_s": self.seconds,
        }


class Delivery:
    """A context. `acknowledged` is the newest version that the Space is known to serve, -1 for none of this run.

    `problem` is the newest one since the last acknowledgement; `failure` is what no later version would mend.
    `listeners` are called with each sync, on this one's thread, before anybody who waits.
    """

    def __init__(
        self,
        bucket: Bucket,
        publisher: Settling,
        replica: Space,
        listeners: Sequence[Callable[[Sync], None]] = (),
        report: Report = say,
    ) -> None:
        self.acknowledged = -1
        self.last: Sync | None = None
        self.problem = ""
        self.failure: SyncError | None = None
        self.is_busy = False
        self._bucket = bucket
        self._publisher = publisher
        self._replica = replica
        self._listeners = listeners
        self._report = report
        self._is_told = False  # of the problems of one version, the first gets a line
        self._delay_s = _FIRST_DELAY_S
        self._changed = threading.Condition()
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._house: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is under way is given up; no thread of it keeps the process alive."""
        self._leaving.set()
        for thread in (self._thread, self._house):
            if thread is not None and not isinstance(error, KeyboardInterrupt):
                thread.join(_LEAVE_S)

    def start(self, parcel: Parcel) -> None:
        """Only while not `is_busy`."""
        assert not self.is_busy, "one version at a time"
        self.is_busy, self._is_told = True, False
        self._thread = threading.Thread(target=self._run, args=(parcel,), name="delivery", daemon=True)
        self._thread.start()

    def wait(self, is_enough: Callable[[], bool], seconds: float) -> None:
        """Until the condition holds, nothing is under way, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: is_enough() or not self.is_busy, seconds)

    # The thread

    def _run(self, parcel: Parcel) -> None:
        sync: Sync | None = None
        try:
            sync = self._deliver(parcel)
        except _LeftError:
            return
        except SyncError as error:
            self.failure = error
        except BaseException as error:  # whatever it is: the thread that trains must learn of it, and save what it has
            _LOG.exception("sync v%d ended by a bug", parcel.version)
            self.failure = SyncError(_bug(parcel.version, error))
        finally:
            with self._changed:  # at once: whoever sees the version acknowledged may start the next one
                if sync is not None:
                    self.acknowledged, self.last, self.problem = sync.manifest.version, sync, ""
                    self._delay_s = _FIRST_DELAY_S
                self.is_busy = False
                self._changed.notify_all()

    def _deliver(self, parcel: Parcel) -> Sync | None:
        manifest = self._publish(parcel)
        sync = self._serve(manifest, parcel) if manifest is not None else None
        self._keep_house()  # also of what became of a failure
        return sync

    def _serve(self, manifest: Manifest, parcel: Parcel) -> Sync | None:
        self._keep(parcel.rollouts, manifest)
        acknowledgement = self._announce(manifest)
        if acknowledgement is None:
            return None
        sync = Sync(manifest, acknowledgement, time.perf_counter() - parcel.started)
        for listener in self._listeners:
            listener(sync)
        self._tell(sync.line())
        return sync

    def _keep_house(self) -> None:
        """On a thread of its own, so that no later version waits for it; one at a time."""
        if self._house is None or not self._house.is_alive():
            self._house = threading.Thread(target=self._work_in_house, name="housekeeping", daemon=True)
            self._house.start()

    def _work_in_house(self) -> None:
        if (work := self._publisher.housekeeping()) is not None:
            work()

    def _publish(self, parcel: Parcel) -> Manifest | None:
        """None when the version is not whole; the next one covers it."""
        try:
            return parcel.publish()
        except (FencedError, IntegrityError):
            raise
        except SyncError as error:
            self._explain(f"sync v{parcel.version} is not published, the next one covers it", str(error))
        while True:
            self._pause()
            try:
                return self._publisher.settle()
            except FencedError:
                raise
            except BucketError as error:
                self.problem = str(error)

    def _keep(self, rollouts: Sequence[Json], manifest: Manifest) -> None:
        if not rollouts:
            return
        lines = "".join(strict_json.written(rollout) + "\n" for rollout in rollouts)
        try:
            self._bucket.write(layout.rollouts(manifest.run_id, manifest.version), lines.encode())
        except BucketError as error:  # they are there to be read by people only
            self._tell(f"sync v{manifest.version} goes on without its rollouts: {error}")

    def _announce(self, manifest: Manifest) -> Acknowledgement | None:
        """None when the Space cannot get there by the chain: then the next version is an anchor."""
        while True:
            try:
                answer = self._replica.update(self._bucket.name, manifest)
            except NeedsAnchorError as error:
                self._publisher.rebase()
                self._explain(f"sync v{manifest.version} leads nowhere, an anchor follows", str(error))
                self._pause()
                return None
            if isinstance(answer, Acknowledgement):
                return answer
            if answer.is_under_way:
                self.problem = answer.reason
                self._rest(_UNDER_WAY_S)
            else:
                self._explain(f"sync v{manifest.version} is published, but not served yet", answer.reason)
                self._pause()

    def _explain(self, what: str, problem: str) -> None:
        if not self._is_told:
            self._tell(f"{what}: {problem}")
        self._is_told, self.problem = True, problem

    def _tell(self, line: str) -> None:
        if not self._leaving.is_set():
            self._report(line)

    def _pause(self) -> None:
        """Longer each time, until a version is acknowledged."""
        self._rest(self._delay_s)
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)

    def _rest(self, seconds: float) -> None:
        if self._leaving.wait(seconds):
            raise _LeftError


def _bug(version: int, error: BaseException) -> str:
    reason = " ".join(f"{type(error).__name__} {error}".split())[:300]
    return f"sync v{version} ended by a bug: {reason}; its traceback is in the log"


class _LeftError(Exception):
    """Nobody waits any more."""
