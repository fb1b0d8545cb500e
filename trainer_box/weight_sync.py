"""What the trainer calls at every sync point: takes the diff and has it delivered, behind the steps that follow.

Knows how far the trained policy may be ahead of the served one, and waits there; nothing of how a version gets to the
Space. A point that finds another version under way takes no diff: the next one covers it, and its number stays a gap.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from shared.errors import SyncError
from shared.output import say
from shared.types import Json, Manifest
from trainer_box.checkpoint import Checkpoint
from trainer_box.delivery import Delivery, Parcel, Report
from trainer_box.detect import NamedTensors

_POLL_S = 0.5
_PROGRESS_S = 15.0
_INTERRUPTED_S = 30.0

Weights = Callable[[], NamedTensors]


class StoppedError(SyncError):
    """The Space cannot be kept up with the trained policy, which itself is sound: a checkpoint is worth saving."""


class Versions(Protocol):
    """The publisher, as the thread that trains needs it."""

    @property
    def run_id(self) -> str: ...

    @property
    def next_version(self) -> int: ...

    def adopt(self, named_tensors: NamedTensors) -> Manifest | None: ...

    def diff(self, named_tensors: NamedTensors, *, version: int) -> Any: ...

    def commit(self, diff: Any, trainer: Mapping[str, Any]) -> Manifest: ...

    def count(self, named_tensors: NamedTensors) -> str: ...


@dataclass(frozen=True)
class Patience:
    """How many versions the served policy may be behind, and for how many seconds training waits when it is further.

    After an interrupt nothing is waited for that is not needed to end.
    """

    max_staleness: int
    deadline_s: float
    is_interrupted: Callable[[], bool] = lambda: False

    @property
    def limit_s(self) -> float:
        return min(self.deadline_s, _INTERRUPTED_S) if self.is_interrupted() else self.deadline_s


class WeightSync:
    """`point` is the number of the newest sync point, -1 before the first."""

    def __init__(
        self,
        publisher: Versions,
        delivery: Delivery,
        patience: Patience,
        checkpoint: Checkpoint | None = None,
        report: Report = say,
    ) -> None:
        """`checkpoint` is where training goes on from."""
        self.point = -1
        self.delivery = delivery
        self._publisher = publisher
        self._patience = patience
        self._checkpoint = checkpoint
        self._report = report
        self._numbers: Json = {}
        self._rollouts: Sequence[Json] = ()

    def __call__(self, weights: Weights, numbers: Json, rollouts: Sequence[Json]) -> int:
        """The number of this sync point. The first returns once it is served, later ones while not too far ahead.

        Raises StoppedError when the Space cannot be kept up, SyncError when the weights are not what they should be.
        """
        if self.point < 0:
            self._begin(weights, numbers, rollouts)
            self._wait(weights, self._is_served)
        else:
            self._advance(numbers, rollouts)
            ahead = f", and training may be {self._patience.max_staleness} ahead (--max-staleness)"
            self._wait(weights, self._is_near, ahead)
        return self.point

    def flush(self, weights: Weights) -> None:
        """Bring the Space to the final weights. Raises StoppedError when that takes too long."""
        if self.point < 0:
            return
        self._wait(weights, self._is_served)
        last = self.delivery.last
        if last is None or self._publisher.count(weights()) != last.manifest.fingerprint:
            self._advance({}, ())
            self._wait(weights, self._is_served)

    def checkpoint_state(self, weights: Weights) -> Json:
        """Run, sync point, and the fingerprint that the weights have now."""
        return {
            "run_id": self._publisher.run_id,
            "version": self.point,
            "fingerprint": self._publisher.count(weights()),
        }

    def _begin(self, weights: Weights, numbers: Json, rollouts: Sequence[Json]) -> None:
        started = time.perf_counter()
        if self._checkpoint is not None:
            self._checkpoint.check_loaded(self._publisher.count(weights()))
            if (manifest := self._publisher.adopt(weights())) is not None:
                self.point = manifest.version
                self._report(f"sync v{manifest.version} is in the bucket already; training goes on from it")
                self.delivery.start(Parcel(manifest.version, lambda: manifest, (), started))
                return
        self._advance(numbers, rollouts)

    def _advance(self, numbers: Json, rollouts: Sequence[Json]) -> None:
        self.point += 1
        self._numbers, self._rollouts = numbers, rollouts

    def _offer(self, weights: Weights) -> None:
        """Have the weights delivered, unless they are or something else is under way."""
        if self.delivery.is_busy or self._is_served():
            return
        started = time.perf_counter()
        self.point = max(self.point, self._publisher.next_version)  # one that failed has spent its number
        diff = self._publisher.diff(weights(), version=self.point)
        last = self.delivery.last
        publish = partial(self._publisher.commit, diff, {**self._numbers, **(last.note() if last else {})})
        self.delivery.start(Parcel(self.point, publish, self._rollouts, started))

    def _is_served(self) -> bool:
        return self.delivery.acknowledged >= self.point

    def _is_near(self) -> bool:
        """Whether samples of the served policy are still trained on; after an interrupt there are no more."""
        behind = self.point - self.delivery.acknowledged
        return behind <= self._patience.max_staleness or self._patience.is_interrupted()

    def _wait(self, weights: Weights, is_enough: Callable[[], bool], because: str = "") -> None:
        started = told = time.monotonic()
        while True:
            self._check_failure()
            self._offer(weights)
            if is_enough():
                return
            now = time.monotonic()
            waited = now - started
            if waited > self._patience.limit_s:
                raise StoppedError(f"{self._situation()} after {waited:.0f} s of waiting{because}; {self._reason()}")
            if now - told > _PROGRESS_S:
                told = now
                self._report(f"{self._situation()}, waiting for {waited:.0f} s now; {self._reason()}")
            self.delivery.wait(is_enough, min(_POLL_S, self._patience.limit_s))

    def _check_failure(self) -> None:
        if (failure := self.delivery.failure) is not None:
            raise StoppedError(str(failure)) from failure

    def _situation(self) -> str:
        served = self.delivery.acknowledged
        return f"sync v{self.point}: vLLM serves {f'version {served}' if served >= 0 else 'no version of this run'}"

    def _reason(self) -> str:
        problem = self.delivery.problem
        return f"the last problem: {problem}" if problem else "the newest version is under way"
