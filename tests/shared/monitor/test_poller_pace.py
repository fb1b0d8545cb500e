"""How often the poller reads and asks: for however many viewers, and whatever fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared import layout
from shared.monitor import history
from shared.monitor.poller import IDLE_PERIOD_S, LOOKED_S, PERIOD_S, Poller, Units
from tests.shared.monitor.polling import Clock, CountingBucket, CountingUnit, FailingBucket, polled, turns, viewers
from tests.shared.monitor.runs import chain, run, write, write_run


def no_run(folder: Path) -> FailingBucket:
    return FailingBucket(folder)


def a_run(folder: Path) -> FailingBucket:
    write_run(folder, run(), chain(30))
    for version in range(30):
        write(folder, layout.rollouts("r1", version), b"{}\n")
    write_run(folder, run("older", age_s=9999), chain(3, run_id="older"))
    return FailingBucket(folder)


def a_failing_list(folder: Path) -> FailingBucket:
    bucket = a_run(folder)
    bucket.unlisted = layout.manifests("r1")
    return bucket


def a_missing_manifest(folder: Path) -> FailingBucket:
    bucket = a_run(folder)
    bucket.hidden = layout.manifest("r1", 29)
    return bucket


def a_damaged_manifest(folder: Path) -> FailingBucket:
    bucket = a_run(folder)
    write(folder, layout.manifest("r1", 29), b"{")
    return bucket


def a_damaged_run(folder: Path) -> FailingBucket:
    write(folder, layout.run_file("r1"), b"{")
    return FailingBucket(folder)


def no_folder(folder: Path) -> FailingBucket:
    bucket = FailingBucket(folder)
    folder.rmdir()
    return bucket


STATES = (no_run, a_run, a_failing_list, a_missing_manifest, a_damaged_manifest, a_damaged_run, no_folder)


@pytest.mark.parametrize("choice", [{}, {"run_id": "older"}, {"version": 3}], ids=str)
@pytest.mark.parametrize("prepared", STATES)
def test_twenty_viewers_cost_what_one_does(
    tmp_path: Path, prepared: Callable[[Path], FailingBucket], choice: dict[str, Any]
) -> None:
    costs = []
    for count in (1, 20):
        bucket, unit, clock = prepared(tmp_path / str(count)), CountingUnit(), Clock()
        poller = Poller(bucket, units=Units({"Replica A": unit}), clock=clock)
        turns(poller, clock, LOOKED_S)
        turns(poller, clock, 30, viewers(poller, count, **choice))
        costs.append((unit.asked, bucket.reads))
    assert costs[0] == costs[1]
    assert costs[0][0] <= 2 + 30 / PERIOD_S


@pytest.mark.parametrize("prepared", STATES)
def test_while_nobody_looks_the_bucket_is_read_once_in_a_longer_period(
    tmp_path: Path, prepared: Callable[[Path], FailingBucket]
) -> None:
    clock = Clock()
    assert turns(Poller(prepared(tmp_path / "b"), clock=clock), clock, 4 * IDLE_PERIOD_S) <= 5


def test_the_first_look_after_a_while_and_a_new_choice_are_served_at_once(tmp_path: Path) -> None:
    clock = Clock()
    poller = Poller(a_run(tmp_path), clock=clock)
    turns(poller, clock, 60)
    assert poller.look().environment is None
    turns(poller, clock, 0.1)
    assert min(poller.look(version=3).rollouts) > 3
    turns(poller, clock, 0.1)
    assert 3 in poller.look(version=3).rollouts
    poller.look("older")
    turns(poller, clock, 0.1)
    assert [m.run_id for m in poller.look("older").manifests] == ["older"] * 3


def test_a_run_that_is_left_while_it_is_read_is_not_read_on(tmp_path: Path) -> None:
    write_run(tmp_path, run("older", age_s=9999), chain(1200, run_id="older"))
    write_run(tmp_path, run(), chain(3))
    bucket, clock = CountingBucket(tmp_path), Clock()
    poller = Poller(bucket, clock=clock)
    poller.poll()
    assert polled(poller, "older").unread == 700
    clock.now += LOOKED_S
    turns(poller, clock, 5)
    bucket.reads.clear()
    assert turns(poller, clock, 2 * IDLE_PERIOD_S) <= 3
    assert not [path for path in bucket.reads if path.startswith("older/manifests")]


def test_a_run_that_a_newer_one_follows_while_it_is_read_is_not_read_on(tmp_path: Path) -> None:
    write_run(tmp_path, run("older", age_s=9999), chain(1200, run_id="older"))
    bucket, clock = CountingBucket(tmp_path), Clock()
    poller = Poller(bucket, clock=clock)
    poller.poll()
    write_run(tmp_path, run(), chain(3))
    assert turns(poller, clock, IDLE_PERIOD_S) <= 2
    assert [m.run_id for m in poller.look().manifests] == ["r1"] * 3


def test_rollouts_of_many_versions_are_kept_for_those_who_asked_last(tmp_path: Path) -> None:
    write_run(tmp_path, run(), chain(300))
    for version in range(300):
        write(tmp_path, layout.rollouts("r1", version), b"{}\n")
    bucket, clock = CountingBucket(tmp_path), Clock()
    poller = Poller(bucket, clock=clock)
    polled(poller)
    turns(poller, clock, 25, lambda tick: poller.look(version=tick))
    turns(poller, clock, PERIOD_S, lambda tick: poller.look())
    bucket.reads.clear()
    turns(poller, clock, 10, lambda tick: poller.look())
    assert not [path for path in bucket.reads if "/rollouts/" in path]
    kept = poller.look().rollouts
    assert len(kept) == history.KEPT_ROLLOUTS and {299, 288, 249, 200} <= kept.keys()
    for version in range(250):
        poller.look(version=version)
    poller.poll()
    assert len(poller.look().rollouts) == history.KEPT_ROLLOUTS
    assert {299, 249, 200} <= poller.look().rollouts.keys()
