"""The rules of one game, and what the player reads."""

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


def test_a_repeated_guess_is_played_again() -> None:
    played = game("trace").guess("TRACE")
    assert (played.text, played.reason) == ("T-R+A+C?E+ 4 left", "")


def test_an_invalid_last_guess_loses() -> None:
    assert game(*WRONG, "zzzzz").tries[-1].text == "invalid word lost"


@pytest.mark.parametrize("guesses", [("crane",), (*WRONG, "trace")])
def test_a_guess_after_the_end_is_an_error_and_changes_nothing(guesses: tuple[str, ...]) -> None:
    over = game(*guesses)
    before = (list(over.tries), over.reward())
    with pytest.raises(GameOverError, match="the game is over; reset to play another"):
        over.guess("slate")
    assert (over.tries, over.reward()) == before
