"""Wordle's vocabulary: words, guesses, marks and boards, for those who play, learn from and draw games.

Pure. Knows no game state, no tries left, no reward and no server: those belong to the environment.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

GUESSES = 6
LETTERS = 5
RIGHT, ELSEWHERE, ABSENT = "+", "?", "-"
WORD_LISTS = {
    "tiny": ("tiny_answers", "tiny_allowed"),
    "small": ("tiny_allowed", "full_allowed"),
    "medium": ("medium_answers", "full_allowed"),
    "full": ("full_answers", "full_allowed"),
}
"""From easy to hard: the file of the secrets, and the file of what may be guessed."""

PROMPT = (
    "Guess the secret 5-letter word in 6 tries with the guess tool. "
    "Feedback per letter: + right place, ? other place, - not in the word.\n"
)


@dataclass(frozen=True)
class WordList:
    """The secrets to draw from, and every word that may be guessed; all lower case. Answers are sorted."""

    name: str
    answers: tuple[str, ...]
    allowed: frozenset[str]


@cache
def load_words(name: str) -> WordList:
    """One shared list per process. ValueError for a name that is not in WORD_LISTS."""
    if name not in WORD_LISTS:
        raise ValueError(f"no word list named {name!r}; choose one of {', '.join(WORD_LISTS)}")
    answers, allowed = WORD_LISTS[name]
    return WordList(name, _lines(answers), frozenset(_lines(allowed)))


@cache
def _lines(name: str) -> tuple[str, ...]:
    return tuple(files("shared.words").joinpath(f"{name}.txt").read_text(encoding="ascii").split())


def secret_for(seed: int, words: WordList) -> str:
    """The same seed and list give the same word in every process, whatever was played before."""
    digest = hashlib.blake2b(f"{seed}|{words.name}".encode(), digest_size=8).digest()
    return words.answers[int.from_bytes(digest, "big") % len(words.answers)]


def feedback(guess: str, secret: str) -> str:
    """One mark per letter. A letter is marked at most as often as the secret has it: right places first, then
    from the left. ValueError when the two words differ in length."""
    spare = Counter(s for g, s in zip(guess, secret, strict=True) if g != s)
    marks = []
    for g, s in zip(guess, secret, strict=True):
        if g == s:
            marks.append(RIGHT)
        elif spare[g] > 0:
            spare[g] -= 1
            marks.append(ELSEWHERE)
        else:
            marks.append(ABSENT)
    return "".join(marks)


def render(guess: str, marks: str) -> str:
    """`crane` and `-?+--` become `C-R?A+N-E-`."""
    return "".join(letter + mark for letter, mark in zip(guess.upper(), marks, strict=True))
