"""The rules of one game, what the player reads, and that the reward leaves nothing to be had but by playing well."""

import itertools
import math
import random

import pytest

from shared.wordle import load_words
from space_env.wordle import Game, GameOverError

WORDS = load_words("full")
WRONG = ["moist", "fluff", "bunch", "goody", "vivid"]


def game(*guesses: str, secret: str = "crane") -> Game:
    """A game of the full list in which these guesses have been played."""
    played = Game(secret, WORDS)
    for guess in guesses:
        played.guess(guess)
    return played


def test_a_valid_guess_shows_its_marks_and_the_tries_left() -> None:
    played = game().guess("trace")
    assert (played.text, played.marks, played.reason) == ("T-R+A+C?E+ 5 left", "-++?+", "")


def test_the_secret_wins() -> None:
    won = game("moist", "crane")
    assert won.won and won.over
    assert won.tries[-1].text == "C+R+A+N+E+ won"


def test_the_secret_on_the_last_try_wins() -> None:
    won = game(*WRONG, "crane")
    assert won.won
    assert won.tries[-1].text == "C+R+A+N+E+ won"
    assert won.reward().total == 0.75


def test_six_wrong_guesses_lose() -> None:
    lost = game(*WRONG, "trace")
    assert lost.over and not lost.won
    assert lost.tries[-1].text == "T-R+A+C?E+ lost"


@pytest.mark.parametrize("word", ["CRANE", "Crane", "  crane\n", "\tcRaNe "])
def test_case_and_surrounding_white_space_do_not_matter(word: str) -> None:
    assert game(word).won


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("", "a guess is 5 letters from a to z"),
        ("cran", "a guess is 5 letters from a to z"),
        ("cranes", "a guess is 5 letters from a to z"),
        ("cr ne", "a guess is 5 letters from a to z"),
        ("cran3", "a guess is 5 letters from a to z"),
        ("cr\u00e4ne", "a guess is 5 letters from a to z"),
        ("\u212anees", "a guess is 5 letters from a to z"),
        ("x" * 100_000, "a guess is 5 letters from a to z"),
        ("zzzzz", "not in the word list"),
    ],
)
def test_an_invalid_guess_uses_up_a_try_and_says_why(word: str, reason: str) -> None:
    played = game()
    invalid = played.guess(word)
    assert (invalid.text, invalid.marks, invalid.reason) == ("invalid word 5 left", "", reason)
    assert played.tries_left == 5


def test_a_repeated_guess_is_invalid_whatever_its_case() -> None:
    played = game("trace")
    assert played.guess("TRACE").reason == "guessed before"
    assert played.tries_left == 4


def test_an_invalid_last_guess_loses() -> None:
    assert game(*WRONG, "zzzzz").tries[-1].text == "invalid word lost"


@pytest.mark.parametrize("guesses", [("crane",), (*WRONG, "trace")])
def test_a_guess_after_the_end_is_an_error_and_changes_nothing(guesses: tuple[str, ...]) -> None:
    over = game(*guesses)
    before = (list(over.tries), over.reward())
    with pytest.raises(GameOverError, match="the game is over; reset to play another"):
        over.guess("slate")
    assert (over.tries, over.reward()) == before


@pytest.mark.parametrize("tries", range(1, 7))
def test_a_win_pays_one_less_a_twentieth_for_each_earlier_try(tries: int) -> None:
    assert game(*WRONG[: tries - 1], "crane").reward().total == pytest.approx(1 - 0.05 * (tries - 1))


def test_a_lost_game_pays_for_its_best_guess() -> None:
    reward = game("trace", *WRONG).reward()
    assert (reward.letters, reward.total) == pytest.approx((0.14, 0.14))


def test_the_parts_add_up_to_the_reward() -> None:
    reward = game("trace", "zzzzz", "trace").reward()
    assert (reward.solved, reward.turns) == (0, 0)
    assert (reward.letters, reward.invalid, reward.unplayed) == pytest.approx((0.14, -0.2, -0.3))
    assert reward.total == pytest.approx(-0.36)


def random_games(count: int) -> list[Game]:
    """Games of random length in which a third of the guesses are invalid."""
    rng = random.Random(0)
    pool = [*sorted(WORDS.allowed)[::200], "zzzzz", "no", "crane"] + ["qqqqq"] * 15
    games = []
    for _ in range(count):
        played = game()
        for _ in range(rng.randint(0, 6)):
            if not played.over:
                played.guess(rng.choice(pool))
        games.append(played)
    return games


def test_the_reward_is_bounded_and_every_win_pays_more_than_every_other_game() -> None:
    wins = [g.reward().total for g in random_games(3000) if g.won]
    others = [g.reward().total for g in random_games(3000) if not g.won]
    assert len(wins) > 50 and len(others) > 50
    worst_win = game("zzzzz", "zzzzz", "zzzzz", "zzzzz", "zzzzz", "crane").reward().total
    best_loss = game("crank", *WRONG).reward().total
    assert worst_win == pytest.approx(0.25)
    assert best_loss == pytest.approx(0.16)
    assert worst_win <= min(wins) and max(wins) <= 1
    assert min(others) >= -0.6 and max(others) <= best_loss


def test_no_guess_at_all_pays_the_least() -> None:
    assert game().reward().total == pytest.approx(-0.6)


def test_guessing_once_and_leaving_pays_less_than_any_valid_guess_more() -> None:
    for more in range(1, 6):
        assert game("trace").reward().total < game("trace", *WRONG[:more]).reward().total


def test_ending_a_game_with_invalid_guesses_pays_no_more_than_leaving_it() -> None:
    left = game("trace").reward().total
    for invalid in range(1, 6):
        ended = game("trace", *["zzzzz"] * invalid).reward().total
        assert ended < left or math.isclose(ended, left)


def test_one_more_valid_guess_never_costs_anything_before_the_win() -> None:
    guesses = ["trace", "moist", "crank", "slate", "vivid"]
    for order in itertools.permutations(guesses):
        rewards = [game(*order[:n]).reward().total for n in range(6)]
        assert rewards == sorted(rewards)
