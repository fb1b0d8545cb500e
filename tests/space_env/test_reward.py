"""What a game pays: its parts, its bounds, and that nothing is to be had but by playing well, whatever the weights."""

import itertools
import random
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.wordle import GUESSES, feedback, load_words
from space_env.reward import PLAIN, Shaping
from space_env.wordle import Game

WORDS = load_words("full")
WRONG = ["moist", "fluff", "bunch", "goody", "vivid"]
GUESSED = [*WRONG, "trace", "crank", "slate", "nacre", "crane", "zzzzz", "no", "qqqqq"]


def game(*guesses: str, shaping: Shaping = PLAIN) -> Game:
    """A game for `crane` in which these guesses have been played."""
    played = Game("crane", WORDS, shaping)
    for guess in guesses:
        played.guess(guess)
    return played


def pays(*guesses: str, shaping: Shaping = PLAIN) -> float:
    return game(*guesses, shaping=shaping).reward().total


@pytest.mark.parametrize("tries", range(1, 7))
def test_a_win_pays_one_less_a_twentieth_for_each_earlier_try(tries: int) -> None:
    assert pays(*WRONG[: tries - 1], "crane") == pytest.approx(1 - 0.05 * (tries - 1))


def test_a_lost_game_pays_for_its_best_guess_by_colour() -> None:
    reward = game("trace", *WRONG).reward()  # T-R+A+C?E+
    assert (reward.greens, reward.yellows, reward.total) == pytest.approx((0.12, 0.02, 0.14))


def test_the_parts_add_up_to_the_reward() -> None:
    reward = game("trace", "zzzzz", "xxxxx").reward()
    assert reward.parts == pytest.approx(
        {"solved": 0, "greens": 0.12, "yellows": 0.02, "invalid": -0.2, "turns": -0.3}
    )
    assert reward.total == pytest.approx(-0.36)


def test_no_guess_at_all_pays_the_least() -> None:
    assert pays() == pytest.approx(PLAIN.bounds[0]) == pytest.approx(-0.6)


def test_a_sparse_reward_is_one_for_a_win_and_nothing_else() -> None:
    sparse = Shaping(green=0, yellow=0, invalid=0, turn=0, unplayed=0)
    assert (pays(*WRONG, "crane", shaping=sparse), pays("trace", "zzzzz", shaping=sparse)) == (1, 0)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"green": -0.1}, "the weight green is -0.1; it must be a number from 0 to 100"),
        ({"solved": float("nan")}, "the weight solved is nan"),
        ({"turn": float("inf")}, "the weight turn is inf"),
        ({"turn": True}, "the weight turn is True"),
        ({"turn": "0.1"}, "the weight turn is '0.1'"),
        ({"grey": 0.1}, "no weight named 'grey'; choose from solved, green, yellow, invalid, turn, unplayed"),
        ({"yellow": 0.05}, r"a yellow letter may not pay more \(0.05\) than a green one \(0.04\)"),
        ({"unplayed": 0.2}, r"an invalid guess must cost at least as much \(0.1\) as a try not played \(0.2\)"),
        ({"green": 0.1}, "the worst win would pay 0.25 and the best lost game 0.4; raise solved, or lower"),
    ],
)
def test_weights_that_reward_anything_but_playing_well_are_refused(weights: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Shaping.of(weights)


def test_weights_not_named_stay_as_they_are() -> None:
    assert asdict(Shaping.of({"solved": 2})) == {**asdict(PLAIN), "solved": 2}


def shaped(green: float, yellow: float, invalid: float, turn: float, unplayed: float, more: float) -> Shaping:
    """Weights that are accepted: `yellow` and `unplayed` are shares of what they may not exceed."""
    solved = 5 * (green + turn + invalid) + more
    return Shaping(solved, green, yellow * green, invalid, turn, unplayed * invalid)


share = st.floats(0, 1)
shapings = st.builds(shaped, share, share, share, share, share, st.floats(0.001, 1))
guesses = st.lists(st.sampled_from(GUESSED), max_size=GUESSES).map(lambda words: words[: upto_win(words)])


def upto_win(words: list[str]) -> int:
    return words.index("crane") + 1 if "crane" in words else len(words)


@settings(max_examples=150, deadline=None)
@given(shapings, guesses)
def test_every_accepted_reward_is_the_sum_of_its_parts_within_its_bounds(shaping: Shaping, words: list[str]) -> None:
    played = game(*words, shaping=shaping)
    low, high = shaping.bounds
    assert low - 1e-6 <= played.reward().total <= high + 1e-6
    assert played.reward().total == pytest.approx(sum(played.reward().parts.values()), abs=1e-5)
    assert (played.reward().solved == shaping.solved) if played.won else (played.reward().solved == 0)


@settings(max_examples=150, deadline=None)
@given(shapings, guesses, guesses)
def test_under_every_accepted_reward_every_win_pays_more_than_every_other_game(
    shaping: Shaping, first: list[str], second: list[str]
) -> None:
    win, other = [word for word in first if word != "crane"][:5], [word for word in second if word != "crane"]
    assert pays(*win, "crane", shaping=shaping) > pays(*other, shaping=shaping) - 1e-6


@settings(max_examples=150, deadline=None)
@given(shapings, guesses)
def test_under_every_accepted_reward_quitting_and_nonsense_gain_nothing(shaping: Shaping, words: list[str]) -> None:
    before = [word for word in words if word != "crane"][:4]
    left = pays(*before, shaping=shaping)
    assert pays(*before, "plumb", shaping=shaping) >= left - 1e-6, "a valid guess more"
    assert pays(*before, "xxxxx", shaping=shaping) <= left + 1e-6, "an invalid guess more"


def test_one_more_valid_guess_never_costs_anything_before_the_win() -> None:
    for order in itertools.permutations(["trace", "moist", "crank", "slate", "vivid"]):
        rewards = [pays(*order[:n]) for n in range(6)]
        assert rewards == sorted(rewards)


def test_the_worst_win_and_the_best_loss_are_what_they_are_taken_for() -> None:
    assert pays(*["zzzzz"] * 5, "crane") == pytest.approx(PLAIN.worst_win)
    rng = random.Random(0)
    for secret in rng.sample(WORDS.answers, 20):
        marks = {feedback(guess, secret) for guess in WORDS.allowed} - {"+++++"}
        best = max(PLAIN.green * m.count("+") + PLAIN.yellow * m.count("?") for m in marks)
        assert best <= PLAIN.best_loss + 1e-9
    assert pays("crank", *WRONG) == pytest.approx(PLAIN.best_loss)
