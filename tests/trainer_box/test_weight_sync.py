"""Sync points: what is published, what is absorbed, how far training may be ahead, when it stops, how it goes on."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shared.errors import BucketError, FencedError, SyncError
from tests.shared.fake_bucket import MemoryBucket
from tests.trainer_box.fake_versions import FakePublisher, FakeReplica, manifest_of
from trainer_box.checkpoint import Checkpoint
from trainer_box.delivery import Delivery
from trainer_box.replica import NeedsAnchorError, Pending
from trainer_box.weight_sync import Patience, StoppedError, Weights, WeightSync

DEADLINE_S = 30
AWAY = Pending("ConnectError: refused")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_box.delivery._FIRST_DELAY_S", 0.001)
    monkeypatch.setattr("trainer_box.delivery._UNDER_WAY_S", 0.001)


def number(value: int) -> Weights:
    return lambda: iter([("a", torch.tensor(float(value)))])


class Bench:
    """Sync points with stand-ins for publisher and Space; the weights at point n are the number n."""

    def __init__(
        self,
        max_staleness: int = 1,
        deadline_s: float = DEADLINE_S,
        checkpoint: Checkpoint | None = None,
        publisher: FakePublisher | None = None,
    ) -> None:
        self.publisher = publisher or FakePublisher()
        self.replica = FakeReplica()
        self.lines: list[str] = []
        self.on_line: Callable[[], None] = lambda: None
        self.is_interrupted = False
        self.delivery = Delivery(MemoryBucket(), self.publisher, self.replica, (), lambda line: None)
        patience = Patience(max_staleness, deadline_s, lambda: self.is_interrupted)
        self.sync = WeightSync(self.publisher, self.delivery, patience, checkpoint, self._report)

    def _report(self, line: str) -> None:
        self.lines.append(line)
        self.on_line()

    def point(self, value: int) -> int:
        return self.sync(number(value), {"reward": value}, [])

    def finish(self) -> None:
        """Let what is under way come to its end."""
        self.replica.gate.set()
        self.delivery.wait(lambda: False, DEADLINE_S)
        assert not self.delivery.is_busy

    def own_numbers(self) -> list[tuple[int, dict[str, float]]]:
        """By version, without what is told of the sync before."""
        return [
            (version, {name: value for name, value in numbers.items() if not name.startswith("sync/")})
            for version, numbers in self.publisher.committed
        ]

    @property
    def published(self) -> list[int]:
        return [version for version, _ in self.publisher.committed]


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of progress as soon as anything is waited for."""
    monkeypatch.setattr("trainer_box.weight_sync._PROGRESS_S", -1.0)
    monkeypatch.setattr("trainer_box.weight_sync._POLL_S", 0.01)


def test_the_first_point_waits_until_its_version_is_served(progress: None) -> None:
    bench = Bench()
    bench.replica.gate.clear()
    bench.on_line = bench.replica.gate.set
    assert bench.point(0) == 0
    assert bench.delivery.acknowledged == 0
    told = r"sync v0: vLLM serves no version of this run, waiting for \d+ s now; the newest version is under way"
    assert re.fullmatch(told, bench.lines[0])


def test_later_points_do_not_wait() -> None:
    bench = Bench(max_staleness=1)
    bench.point(0)
    bench.replica.gate.clear()
    assert bench.point(1) == 1
    assert bench.delivery.acknowledged == 0
    bench.finish()
    assert bench.delivery.acknowledged == 1


def test_a_point_that_finds_a_version_under_way_takes_no_diff_and_leaves_a_gap() -> None:
    bench = Bench(max_staleness=5)
    bench.point(0)
    bench.replica.gate.clear()
    assert [bench.point(value) for value in (1, 2, 3)] == [1, 2, 3]
    bench.finish()
    assert bench.point(4) == 4
    bench.finish()
    assert bench.published == bench.publisher.diffs == [0, 1, 4]
    assert bench.delivery.acknowledged == 4
    assert bench.own_numbers()[-1] == (4, {"reward": 4})


def test_a_version_tells_of_the_sync_before_it_whose_pause_came_after_its_manifest() -> None:
    bench = Bench(max_staleness=5)
    for value in (0, 1):
        bench.point(value)
        bench.finish()
    (_, first), (_, second) = bench.publisher.committed
    assert first == {"reward": 0}
    told = {name: second[name] for name in ("sync/version", "sync/pause_ms", "sync/stage_ms", "sync/diff_s")}
    assert told == {"sync/version": 0, "sync/pause_ms": 50.0, "sync/stage_ms": 1200.0, "sync/diff_s": 0.0}
    assert second["sync/duration_s"] >= 0


def test_at_most_the_allowed_staleness_is_trained_ahead(progress: None) -> None:
    bench = Bench(max_staleness=2)
    bench.point(0)
    bench.lines.clear()
    bench.replica.gate.clear()
    bench.point(1)
    bench.point(2)
    assert bench.lines == [], "two versions ahead is allowed"
    bench.on_line = bench.replica.gate.set
    assert bench.point(3) == 3
    assert re.match(r"sync v3: vLLM serves version 0, waiting for \d+ s now; ", bench.lines[0])
    assert bench.delivery.acknowledged >= 1


def test_without_staleness_every_point_is_served_before_training_goes_on() -> None:
    bench = Bench(max_staleness=0)
    for value in range(4):
        bench.point(value)
        assert bench.delivery.acknowledged == value


def test_a_publish_that_fails_is_covered_by_the_next_point() -> None:
    bench = Bench(max_staleness=2)
    bench.point(0)
    bench.publisher.failing = [BucketError("upload broke off")]
    assert bench.point(1) == 1
    bench.finish()
    assert bench.point(2) == 2
    bench.finish()
    assert bench.published == [0, 2]
    assert bench.delivery.acknowledged == 2


def test_who_waits_takes_a_new_diff_under_a_new_number_when_a_publish_fails() -> None:
    bench = Bench(max_staleness=0)
    bench.publisher.failing = [BucketError("upload broke off"), BucketError("again"), None]
    assert bench.point(0) == 2
    assert bench.publisher.diffs == [0, 1, 2]
    assert bench.delivery.acknowledged == 2
    assert bench.point(1) == 3


def test_a_space_that_needs_an_anchor_for_the_first_version_gets_one() -> None:
    bench = Bench()
    bench.replica.answers = [NeedsAnchorError("HTTP 409: another base")]
    assert bench.point(0) == 1
    assert (bench.publisher.rebased, bench.published) == (1, [0, 1])


def test_a_space_that_is_stuck_stops_training_in_a_sentence() -> None:
    bench = Bench(max_staleness=1, deadline_s=0.02)
    bench.point(0)
    bench.replica.answers = [Pending("HTTP 503 dirty")] * 10_000
    bench.point(1)
    with pytest.raises(StoppedError) as caught:
        bench.point(2)
    assert str(caught.value) == (
        "sync v2: vLLM serves version 0 after 0 s of waiting, and training may be 1 ahead (--max-staleness); "
        "the last problem: HTTP 503 dirty"
    )
    with bench.delivery:
        pass


def test_a_first_version_that_is_not_served_in_time_is_told() -> None:
    bench = Bench(deadline_s=0.02)
    bench.replica.answers = [AWAY] * 10_000
    with pytest.raises(StoppedError, match="vLLM serves no version of this run after 0 s of .* problem: ConnectError"):
        bench.point(0)
    with bench.delivery:
        pass


@pytest.mark.parametrize("failure", [FencedError("epoch 2"), SyncError("vLLM refused version 1: HTTP 403")])
def test_what_does_not_get_better_stops_training_at_the_next_point(failure: SyncError) -> None:
    bench = Bench(max_staleness=5)
    bench.point(0)
    bench.publisher.failing = [failure] if isinstance(failure, FencedError) else []
    bench.replica.answers = [failure]
    assert bench.point(1) == 1
    bench.finish()
    with pytest.raises(StoppedError, match=str(failure)):
        bench.point(2)
    assert bench.publisher.diffs == [0, 1]


def test_a_bug_behind_training_stops_it_like_what_does_not_get_better() -> None:
    bench = Bench(max_staleness=5)
    bench.point(0)
    bench.publisher.failing = [RuntimeError("a message of a library")]
    bench.point(1)
    bench.finish()
    with pytest.raises(
        StoppedError, match="sync v1 ended by a bug: RuntimeError a message of a library; its traceback"
    ):
        bench.point(2)


def test_an_interrupt_ends_the_wait_of_a_point(progress: None) -> None:
    bench = Bench(max_staleness=0)
    bench.point(0)
    bench.replica.gate.clear()
    bench.on_line = lambda: setattr(bench, "is_interrupted", True)
    assert bench.point(1) == 1
    assert bench.delivery.acknowledged == 0
    bench.finish()


def test_an_interrupt_shortens_the_flush(progress: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_box.weight_sync._INTERRUPTED_S", 0.0)
    bench = Bench()
    bench.point(0)
    bench.replica.gate.clear()
    bench.point(1)
    bench.on_line = lambda: setattr(bench, "is_interrupted", True)
    with pytest.raises(StoppedError, match=r"sync v1: vLLM serves version 0 after \d+ s of waiting; "):
        bench.sync.flush(number(1))
    bench.finish()


# The end of training.


def test_a_flush_waits_for_what_is_under_way(progress: None) -> None:
    bench = Bench()
    bench.point(0)
    bench.replica.gate.clear()
    bench.point(1)
    bench.on_line = bench.replica.gate.set
    bench.sync.flush(number(1))
    assert (bench.delivery.acknowledged, bench.published) == (1, [0, 1])


def test_a_problem_is_remembered_while_the_next_version_is_under_way(progress: None) -> None:
    bench = Bench(max_staleness=0)
    bench.publisher.failing = [BucketError("upload broke off")]
    bench.replica.gate.clear()
    bench.on_line = lambda: bench.replica.gate.set() if bench.publisher.diffs == [0, 1] else None
    bench.point(0)
    assert bench.lines[-1].endswith("; the last problem: upload broke off")
    assert bench.delivery.problem == ""


def test_a_flush_publishes_what_was_absorbed_under_its_number_and_with_its_numbers(progress: None) -> None:
    bench = Bench(max_staleness=5)
    bench.point(0)
    bench.replica.gate.clear()
    bench.point(1)
    bench.point(2)
    bench.on_line = bench.replica.gate.set
    bench.sync.flush(number(2))
    assert bench.delivery.acknowledged == 2
    assert bench.own_numbers()[-1] == (2, {"reward": 2})


def test_a_flush_publishes_what_failed(progress: None) -> None:
    bench = Bench()
    bench.point(0)
    bench.publisher.failing = [BucketError("upload broke off")]
    bench.point(1)
    bench.sync.flush(number(1))
    assert (bench.delivery.acknowledged, bench.published, bench.sync.point) == (2, [0, 2], 2)


def test_a_flush_covers_steps_after_the_last_point() -> None:
    bench = Bench()
    bench.point(0)
    bench.point(1)
    bench.sync.flush(number(7))
    assert (bench.delivery.acknowledged, bench.published) == (2, [0, 1, 2])
    bench.sync.flush(number(7))
    assert bench.published == [0, 1, 2], "there is nothing left to publish"


def test_a_flush_before_the_first_point_does_nothing() -> None:
    bench = Bench()
    bench.sync.flush(number(0))
    assert bench.publisher.diffs == []


# Going on.


def saved(fingerprint: int) -> Checkpoint:
    return Checkpoint(Path("out/checkpoint-4"), "run", 7, f"{fingerprint:016x}")


def test_a_checkpoint_carries_run_point_and_fingerprint() -> None:
    bench = Bench()
    bench.point(0)
    assert bench.sync.checkpoint_state(number(3)) == {"run_id": "run", "version": 0, "fingerprint": f"{3:016x}"}


def test_a_resumed_run_whose_weights_are_the_newest_version_publishes_nothing() -> None:
    held = manifest_of(7, f"{4:016x}")
    bench = Bench(checkpoint=saved(4), publisher=FakePublisher(next_version=8, held=held))
    assert bench.point(4) == 7
    assert (bench.replica.announced, bench.published) == ([7], [])
    assert bench.lines == ["sync v7 is in the bucket already; training goes on from it"]
    assert bench.point(5) == 8
    bench.finish()
    assert bench.published == [8]


def test_numbers_that_a_resumed_run_has_spent_are_left_out() -> None:
    held = manifest_of(5, f"{4:016x}")
    bench = Bench(checkpoint=saved(4), publisher=FakePublisher(next_version=8, held=held))
    assert [bench.point(4), bench.point(5)] == [5, 8]
    bench.finish()


def test_a_resumed_run_with_other_weights_starts_with_a_new_version() -> None:
    bench = Bench(checkpoint=saved(4), publisher=FakePublisher(next_version=12))
    assert bench.point(4) == 12
    assert (bench.replica.announced, bench.published) == ([12], [12])


def test_an_adopted_version_that_the_space_cannot_reach_is_followed_by_an_anchor() -> None:
    held = manifest_of(7, f"{4:016x}")
    bench = Bench(checkpoint=saved(4), publisher=FakePublisher(next_version=8, held=held))
    bench.replica.answers = [NeedsAnchorError("HTTP 409")]
    assert bench.point(4) == 8
    assert (bench.publisher.rebased, bench.published) == (1, [8])


def test_loaded_weights_that_are_not_what_was_saved_are_refused() -> None:
    bench = Bench(checkpoint=saved(4))
    with pytest.raises(SyncError) as caught:
        bench.point(5)
    sentence = str(caught.value)
    assert f"from out/checkpoint-4 have fingerprint {5:016x} in the served dtype, saved were {4:016x}: " in sentence
    assert "damaged, or of another model than --model" in sentence
    assert bench.replica.announced == []
