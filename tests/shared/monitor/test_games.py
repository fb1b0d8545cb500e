"""Rollouts as games: boards, text as it was written, and what is chosen."""

from typing import Any

import pytest

from shared.monitor import games
from shared.monitor.games import Choice
from shared.monitor.snapshot import Snapshot
from shared.types import Json
from tests.shared.monitor.runs import rollout, showing

WON = rollout(
    ("trace", "T?R-A-C-E- 5 left"), ("agree", "A+G+R+E+E+ won"), version=3, reward=0.9, environment__solved=1.0
)
LOST = rollout(
    ("zzzz", "invalid word 5 left (not in the word list)"),
    text="I try this.",
    version=4,
    reward=-0.5,
    environment__solved=0.0,
    environment__reward_invalid=-0.1,
)


def holding(*rollouts: Json, version: int = 4) -> Snapshot:
    return showing(rollout_versions=(1, version), rollouts={version: rollouts})


def shown(snapshot: Snapshot, **choice: Any) -> list[Json]:
    return games.games(snapshot, Choice(**choice))


def board(game: Json) -> list[str]:
    return ["".join(tile["letter"] for tile in row) for row in game["board"]]


def test_a_game_has_its_board_turn_by_turn() -> None:
    (game,) = shown(holding(WON))
    assert board(game) == ["TRACE", "AGREE"]
    marks = [[tile["mark"] for tile in row] for row in game["board"]]
    assert marks == [["elsewhere", "absent", "absent", "absent", "absent"], ["right"] * 5]
    assert (game["title"], game["outcome"], game["reward"]) == ("Version 4, played by 3", "solved", "+0.90")


def test_an_invalid_guess_is_a_row_of_what_was_guessed() -> None:
    (game,) = shown(holding(LOST))
    assert board(game) == ["ZZZZ "]
    assert {tile["mark"] for tile in game["board"][0]} == {"invalid"}
    assert game["parts"] == [{"name": "invalid", "value": "-0.10"}]
    assert game["title"] == "Version 4"


def test_what_was_said_is_kept_word_for_word() -> None:
    (game,) = shown(holding(LOST))
    assert [(turn["role"], turn["text"]) for turn in game["turns"]] == [
        ("user", "Guess the word."),
        ("model", "I try this.\nguess(zzzz)"),
        ("answer", "invalid word 5 left (not in the word list)"),
    ]


@pytest.mark.parametrize(
    ("choice", "outcomes"),
    [
        ({}, ["solved", "not solved"]),
        ({"solved": "solved"}, ["solved"]),
        ({"solved": "not solved"}, ["not solved"]),
        ({"least": 0.5}, ["solved"]),
        ({"least": -1.0}, ["solved", "not solved"]),
        ({"version": 4}, ["solved", "not solved"]),
        ({"version": 3}, []),
    ],
)
def test_games_are_chosen_by_version_outcome_and_reward(choice: dict[str, Any], outcomes: list[str]) -> None:
    assert [game["outcome"] for game in shown(holding(WON, LOST), **choice)] == outcomes


def test_the_newest_versions_come_first_and_no_more_than_fit() -> None:
    snapshot = showing(rollout_versions=(1, 2), rollouts={1: (LOST,) * 20, 2: (WON,) * 3})
    found = shown(snapshot)
    assert len(found) == games.SHOWN
    assert [game["outcome"] for game in found[:4]] == ["solved"] * 3 + ["not solved"]


@pytest.mark.parametrize(
    ("choice", "count", "line"),
    [
        ({}, 2, "2 games are shown; there are some of 2 versions, 1 to 4."),
        ({"least": 5.0}, 0, "No game of version 4 is as chosen; there are some of 2 versions, 1 to 4."),
        ({"version": 2}, 0, "Version 2 has no rollouts; there are some of 2 versions, 1 to 4."),
        ({"version": 1}, 0, "The rollouts of version 1 are being read."),
    ],
)
def test_a_line_says_what_is_shown_of_what_there_is(choice: dict[str, Any], count: int, line: str) -> None:
    assert games.line(holding(WON, LOST), Choice(**choice), count) == line


def test_without_rollouts_it_says_so() -> None:
    assert games.line(showing(), Choice(), 0) == "No rollouts are in the bucket yet."


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"messages": "x", "numbers": []},
        {"messages": [None, {"role": 5, "content": {"a": 1}}], "numbers": {"reward": "high"}},
        {"messages": [{"role": "assistant", "tool_calls": [None, {"function": "x"}, {"function": {"arguments": 5}}]}]},
        {"messages": [{"role": "tool", "content": "no board at all"}]},
    ],
)
def test_a_rollout_of_any_shape_is_shown_without_a_board(odd: Json) -> None:
    (game,) = shown(holding(odd))
    assert game["board"] == []


def test_a_long_text_is_cut() -> None:
    (game,) = shown(holding(rollout(("trace", "T?R-A-C-E- 5 left"), text="a" * 5000)))
    assert game["turns"][1]["text"] == "a" * games.MOST_LETTERS + " ... (3013 characters more)"


@pytest.mark.parametrize(
    ("entered", "choice"),
    [
        (("12", "solved", "0.5"), Choice(12, "solved", 0.5)),
        ((" 12 ", "all", "-.5"), Choice(12, "all", -0.5)),
        (("", None, None), Choice()),
        (("-1", "nonsense", "nan"), Choice()),
        (("9" * 30, "not solved", "1e400"), Choice(None, "not solved", None)),
        ((12, 5, 1), Choice(12, "all", 1.0)),
    ],
)
def test_what_a_viewer_enters_chooses_or_nothing(entered: tuple[object, object, object], choice: Choice) -> None:
    assert Choice.of(*entered) == choice
