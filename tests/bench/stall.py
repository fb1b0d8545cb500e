"""How long a training step waits for a sync: with the diff alone on the thread that trains, and with all of it there.

The same trainer, bucket and Space sync in turn: as `trainer_box` does it (`ours`), with everything on the thread that
trains, and that with the public blog's file (int32 indices, bf16 values). A step moves float32 weights and sleeps as
long as a GPU would compute. The weights are compared with a bf16 copy on the CPU: where trainer and copy are on a GPU,
a diff takes less. Every version is verified by the Space, from the weights it holds.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch

from shared.bucket import open_bucket
from shared.files import Encoding
from shared.types import Base, Manifest
from tests.bench.rows import Result, Row, result
from tests.bench.space_process import SpaceProcess, space_process
from tests.bench.steps import QWEN3_06B, Qwen3, shapes_of
from tests.bench.throttled import Throttled
from tests.bench.trainee import Trainee
from trainer_box.delivery import Delivery
from trainer_box.publisher import Publisher
from trainer_box.weight_sync import Patience, WeightSync

RUN = "bench"
LEARNING_RATE = 1e-6
_UNTHROTTLED, _MB = 1e12, 1e6
_PATIENCE = Patience(max_staleness=4, deadline_s=600)


@dataclass(frozen=True)
class Plan:
    """`links` in bytes per second, both ways. A training step sleeps for `step_s` seconds."""

    size: Qwen3 = QWEN3_06B
    links: Sequence[float] = (25e6, 2e6)
    step_s: float = 30.0
    steps: int = 2
    rounds: int = 2


@dataclass
class Measured:
    """Of one way to sync over one link: seconds, per step. Of the `points`, those that take no diff have no stall."""

    points: int = 0
    stalls: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)

    @property
    def without_diff(self) -> int:
        return self.points - len(self.stalls)

    def note(self, manifest: Manifest) -> None:
        self.nbytes.append(manifest.nbytes)
        self.changed.append(1 - manifest.sparsity)


class Bench:
    """Trainer, link and Space, with what was measured by link and way; `None` is without a sync."""

    def __init__(self, plan: Plan, link: Throttled, space: SpaceProcess) -> None:
        self.plan = plan
        self.found: dict[tuple[float | None, str], Measured] = {}
        self._link = link
        self._space = space
        self._trainee = Trainee(shapes_of(plan.size), LEARNING_RATE)
        self._base = Base(repo="the Space's own", fingerprint=space.held())

    def play(self) -> None:
        """A round takes every way over every link, so that all are measured at the same times."""
        for _ in range(self.plan.rounds):
            with self._publisher("packed") as publisher:
                self._train(self._of(None, "none"), lambda: True)
                for speed in self.plan.links:
                    self._behind(publisher, speed)
                    self._on_the_thread(publisher, speed, "synchronous")
            with self._publisher("coo") as publisher:
                for speed in self.plan.links:
                    self._on_the_thread(publisher, speed, "synchronous, int32 + bf16")

    @contextmanager
    def _publisher(self, encoding: Encoding) -> Iterator[Publisher]:
        """One that goes on from what is in the bucket, and leaves all of the weights there."""
        self._at(_UNTHROTTLED)
        options = {"base": self._base, "serving_dtype": torch.bfloat16}
        with Publisher(self._link, RUN, encoding=encoding, **options) as publisher:  # type: ignore[arg-type]
            if publisher.adopt(self._trainee.named()) is None:
                self._sync(publisher)
            yield publisher
            self._at(_UNTHROTTLED)
            self._sync(publisher)

    def _behind(self, publisher: Publisher, speed: float) -> None:
        """As `trainer_box` does it."""
        measured = self._of(speed, "ours")
        synced: list[Manifest] = []
        listeners = [lambda sync: synced.append(sync.manifest)]
        with Delivery(self._link, publisher, self._space, listeners, _say_nothing) as delivery:
            sync = WeightSync(publisher, delivery, _PATIENCE, report=_say_nothing)
            self._at(_UNTHROTTLED)
            sync(self._trainee.named, {}, ())  # what was trained before; the first waits until it is served
            self._at(speed)
            self._train(measured, lambda: self._point(sync), lambda: self._await(delivery))
        for manifest in synced[1:]:
            measured.note(manifest)

    def _on_the_thread(self, publisher: Publisher, speed: float, way: str) -> None:
        measured = self._of(speed, way)
        self._at(_UNTHROTTLED)
        self._sync(publisher)
        self._at(speed)
        self._train(measured, lambda: self._noted(measured, publisher), sleeps=False)

    def _train(
        self,
        measured: Measured,
        sync: Callable[[], bool],
        settle: Callable[[], None] = lambda: None,
        sleeps: bool = True,
    ) -> None:
        began, used = time.perf_counter(), time.process_time()
        for _ in range(self.plan.steps):
            self._trainee.step()
            time.sleep(self.plan.step_s if sleeps else 0)
            started = time.perf_counter()
            took_diff = sync()
            measured.points += 1
            measured.stalls += [time.perf_counter() - started] if took_diff else []
        measured.steps.append((time.perf_counter() - began) / self.plan.steps)
        settle()
        measured.cpu.append((time.process_time() - used) / self.plan.steps)

    def _point(self, sync: WeightSync) -> bool:
        """Whether it takes a diff, which it does not while the version before is under way."""
        is_free = not sync.delivery.is_busy
        sync(self._trainee.named, {}, ())
        return is_free

    def _noted(self, measured: Measured, publisher: Publisher) -> bool:
        measured.note(self._sync(publisher))
        return True

    def _sync(self, publisher: Publisher) -> Manifest:
        manifest = publisher.publish(self._trainee.named())
        self._space.update(self._link.name, manifest)
        return manifest

    def _await(self, delivery: Delivery) -> None:
        delivery.wait(lambda: False, _PATIENCE.deadline_s)
        assert not delivery.is_busy and delivery.failure is None, f"not delivered: {delivery.failure}"

    def _at(self, bytes_per_s: float) -> None:
        self._link.bytes_per_s = self._space.bytes_per_s = bytes_per_s

    def _of(self, speed: float | None, way: str) -> Measured:
        return self.found.setdefault((speed, way), Measured())


def run(plan: Plan | None = None) -> Result:
    return result(rows(measure(plan or Plan())))


def measure(plan: Plan) -> Bench:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        space = stack.enter_context(space_process(shapes_of(plan.size), _UNTHROTTLED))
        bench = Bench(plan, Throttled(open_bucket(f"local:{folder}"), _UNTHROTTLED), space)
        bench.play()
    return bench


def rows(bench: Bench) -> Iterator[Row]:
    without = bench.found[None, "none"]
    for speed in bench.plan.links:
        case, ours = f"{speed / _MB:g} MB/s", bench.found[speed, "ours"]
        for way in ("synchronous", "synchronous, int32 + bf16"):
            peer = bench.found[speed, way]
            yield Row(case, "stall per step, s", way, median(ours.stalls), median(peer.stalls))
            yield Row(case, "MB per sync", way, median(ours.nbytes) / _MB, median(peer.nbytes) / _MB)
            yield Row(case, "changed, %", way, 100 * median(ours.changed), 100 * median(peer.changed))
        yield Row(case, "points without a diff", "all points", ours.without_diff, ours.points)
        yield Row(case, "s per step", "without a sync", median(ours.steps), median(without.steps))
        yield Row(case, "trainer's CPU s per step", "without a sync", median(ours.cpu), median(without.cpu))


def _say_nothing(line: str) -> None:
    """The table is all that is printed."""


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))
