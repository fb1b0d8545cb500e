"""What a sync costs the trainer, by the number of receivers: nothing that it does depends on how many there are.

Receivers are processes with weights of their own that fetch each version from the one bucket, while the trainer
publishes the next, and recount all of it. They share this machine's cores with the trainer, so its seconds grow where
there are more of them than cores; its processor time, calls and bytes are what counts.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import torch

from shared.bucket import open_bucket
from tests.bench.counted import Counted
from tests.bench.receiver_processes import Receivers, receiver_processes
from tests.bench.rows import Result, Row, result
from tests.bench.steps import SERVED_20M, Qwen3, shapes_of
from tests.bench.trainee import Trainee
from tests.torch_threads import torch_threads
from trainer_box.publisher import Publisher

RUN, LEARNING_RATE = "bench", 1e-6


@dataclass(frozen=True)
class Plan:
    size: Qwen3 = SERVED_20M
    counts: Sequence[int] = (1, 2, 4, 8)
    steps: int = 5
    rounds: int = 2


@dataclass(frozen=True)
class Cost:
    """To the trainer, of one sync."""

    cpu_s: float
    seconds: float
    calls: float
    megabytes: float


class Bench:
    def __init__(self, plan: Plan, bucket: Counted, publisher: Publisher, receivers: Receivers) -> None:
        self._plan, self._bucket, self._publisher, self._receivers = plan, bucket, publisher, receivers
        self._trainee = Trainee(shapes_of(plan.size), LEARNING_RATE)

    def play(self) -> dict[int, list[Cost]]:
        """Rounds over all numbers of receivers, each of which begins where the newest version is."""
        found: dict[int, list[Cost]] = {count: [] for count in self._plan.counts}
        self._publish()
        for _ in range(self._plan.rounds):
            for count in self._plan.counts:
                self._receivers.catch_up(count)
                self._receivers.reached(count)
                found[count] += [self._sync(count) for _ in range(self._plan.steps)]
        return found

    def _sync(self, count: int) -> Cost:
        """Receivers are behind by one version while the next is published."""
        self._trainee.step()
        self._publish()
        self._receivers.catch_up(count)
        self._trainee.step()
        counted, started, used = self._bucket.start(), time.perf_counter(), time.process_time()
        manifest = self._publish()
        cost = Cost(time.process_time() - used, time.perf_counter() - started, float(counted.calls), counted.up / 1e6)
        self._receivers.reached(count)
        self._receivers.catch_up(count)
        assert set(self._receivers.reached(count)) == {manifest}, f"a receiver does not hold {manifest}"
        return cost

    def _publish(self) -> str:
        """The fingerprint."""
        return self._publisher.publish(self._trainee.named()).fingerprint


def run(plan: Plan | None = None) -> Result:
    return result(rows(measure(plan or Plan())))


def measure(plan: Plan) -> dict[int, Cost]:
    """Medians, by the number of receivers."""
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        bucket = Counted(open_bucket(f"local:{folder}"))
        with (
            Publisher(bucket, RUN, serving_dtype=torch.bfloat16) as publisher,
            receiver_processes(bucket.name, RUN, max(plan.counts)) as receivers,
        ):
            found = Bench(plan, bucket, publisher, receivers).play()
    return {count: _median(costs) for count, costs in found.items()}


def rows(found: dict[int, Cost]) -> Iterator[Row]:
    """Each against the fewest receivers, and bytes also against a trainer that would send to each of them."""
    fewest = min(found)
    for count, cost in found.items():
        for what, value in asdict(cost).items():
            name = f"trainer's {what.replace('_', ' ')} per sync"
            yield Row(f"{count} receivers", name, f"with {fewest}", value, asdict(found[fewest])[what])
        sent = count * found[fewest].megabytes
        yield Row(f"{count} receivers", "trainer's megabytes per sync", "sent to each", cost.megabytes, sent)


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(*(median(values) for values in zip(*(asdict(cost).values() for cost in costs), strict=True)))
