"""What is made again when something has changed, and what is not."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shared.monitor import pieces
from shared.monitor.games import Choice
from shared.monitor.pieces import PLOTS
from shared.monitor.shelf import MOST, Shelf
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer
from tests.shared.monitor.runs import NOW, chain, rollout, run, serving, showing


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that were made, in order."""
    found = list[str]()

    def noted(name: str) -> Any:
        make = getattr(pieces, name)

        def making(*arguments: Any) -> Any:
            found.append(name)
            return make(*arguments)

        return making

    for name in ("of_now", "of_plots", "frames", "of_bucket", "of_games"):
        monkeypatch.setattr(pieces, name, noted(name))
    return found


def busy(snapshot: Snapshot, sessions: int) -> Snapshot:
    return replace(snapshot, number=snapshot.number + 1, environment=Answer({"sessions": sessions, "capacity": 9}))


def marks(shelf: Shelf, snapshot: Snapshot, choice: Choice | None = None) -> list[int]:
    return [piece.mark for piece in shelf.pieces(snapshot, choice or Choice(), NOW)]


def test_what_many_viewers_see_is_made_once(made: list[str]) -> None:
    shelf, snapshot = Shelf(), showing(*chain(3))
    first = marks(shelf, snapshot)
    assert all(marks(shelf, snapshot) == first for _ in range(19))
    assert made == ["of_now", "of_plots", "frames", "of_bucket", "of_games"]


def test_a_change_of_the_environment_draws_no_plot_and_changes_only_what_shows_it(made: list[str]) -> None:
    shelf, snapshot = Shelf(), showing(*chain(3))
    before = marks(shelf, busy(snapshot, 1))
    made.clear()
    after = marks(shelf, busy(busy(snapshot, 1), 2))
    assert made == ["of_now", "of_bucket"]
    assert [place for place, pair in enumerate(zip(before, after, strict=True)) if len(set(pair)) == 2] == [1, 2]


def test_a_new_version_changes_the_plots_that_have_a_new_point() -> None:
    shelf, versions = Shelf(), chain(4, reward=0.5)
    before, after = marks(shelf, showing(*versions[:3])), marks(shelf, showing(*versions, number=2))
    names, drawn = [plot.name for plot in PLOTS], slice(4 + len(PLOTS), 4 + 2 * len(PLOTS))
    pairs = zip(names, before[drawn], after[drawn], strict=True)
    assert {name for name, old, new in pairs if old != new} == {"reward", "dropped", "payload", "sparsity", "bytes"}


def test_a_pause_that_a_replica_tells_is_drawn() -> None:
    shelf, snapshot = Shelf(), showing(*chain(3))
    told = serving(2, last_sync={"run_id": "r1", "version": 2, "pause_ms": 5.0})
    assert marks(shelf, snapshot) != marks(shelf, replace(snapshot, replicas={"A": told}))
    frames = [piece.content for piece in shelf.pieces(replace(snapshot, replicas={"A": told}), Choice(), NOW)]
    assert list(frames[4 + len(PLOTS) + [plot.name for plot in PLOTS].index("pause")]["value"]) == [5.0]


def test_each_run_and_each_choice_has_its_own_pieces() -> None:
    shelf, game = Shelf(), rollout(reward=0.5)
    first = showing(*chain(3), rollout_versions=(2,), rollouts={2: (game,)})
    second = replace(first, run=run("r2"))
    assert set(marks(shelf, first)).isdisjoint(marks(shelf, second))
    chosen = marks(shelf, first, Choice(least=1.0))
    assert chosen[:-1] == marks(shelf, first)[:-1] and chosen[-1] != marks(shelf, first)[-1]


def test_time_alone_changes_what_tells_of_it() -> None:
    shelf, snapshot = Shelf(), showing(*chain(3))
    before = shelf.pieces(snapshot, Choice(), NOW)
    later = shelf.pieces(snapshot, Choice(), NOW + timedelta(seconds=5))
    changed = [place for place, pair in enumerate(zip(before, later, strict=True)) if pair[0] != pair[1]]
    assert changed == [0, 1], "verdict and tiles"


def test_what_is_kept_has_a_bound(made: list[str]) -> None:
    shelf, snapshot = Shelf(), showing(*chain(3))
    for version in range(2 * MOST):
        marks(shelf, snapshot, Choice(version))
    assert made.count("of_plots") == 1, "what is asked for stays"
    marks(shelf, snapshot, Choice(0))
    assert made.count("of_games") == 2 * MOST + 1
