"""One game of Wordle: the rules, what the player reads, and what the game pays. Pure; knows no session and no server.

The reward is the sum of five parts, and is worth the same however the game ends:

    solved     1 for a won game
    turns      -0.05 for each try before the winning one
    letters    if not won, 0.02 x the best guess so far, a right place counting 2 and another place 1 (at most 0.16)
    invalid    -0.1 for each invalid guess
    unplayed   if not won, -0.1 for each try not played

It lies between -0.6 and 1. Every won game pays more than every other one (at least 0.25), an invalid guess never pays
more than leaving the game does, and leaving early never pays more than playing on.
"""

from dataclasses import dataclass

from shared.wordle import ELSEWHERE, GUESSES, LETTERS, RIGHT, WordList, feedback, render


class GameOverError(ValueError):
    """A guess in a game that has ended."""


@dataclass(frozen=True)
class Try:
    """One try, used up. `marks` is empty and `reason` is set for an invalid guess; `text` is what the player reads."""

    word: str
    marks: str
    reason: str
    text: str


@dataclass(frozen=True)
class Reward:
    """The parts of the reward; `total` is their sum."""

    solved: float
    turns: float
    letters: float
    invalid: float
    unplayed: float

    @property
    def total(self) -> float:
        return round(self.solved + self.turns + self.letters + self.invalid + self.unplayed, 6)


class Game:
    def __init__(self, secret: str, words: WordList) -> None:
        self.secret = secret
        self.words = words
        self.tries: list[Try] = []

    @property
    def won(self) -> bool:
        return bool(self.tries) and self.tries[-1].marks == RIGHT * LETTERS

    @property
    def tries_left(self) -> int:
        return GUESSES - len(self.tries)

    @property
    def over(self) -> bool:
        return self.won or self.tries_left == 0

    def guess(self, word: str) -> Try:
        """Plays one try, upper or lower case, white space around it ignored. GameOverError after the end."""
        if self.over:
            raise GameOverError("the game is over; reset to play another")
        word = word.strip()
        word = word.lower() if word.isascii() else word
        reason = self._why_invalid(word)
        marks = "" if reason else feedback(word, self.secret)
        played = Try(word, marks, reason, self._text(word, marks))
        self.tries.append(played)
        return played

    def reward(self) -> Reward:
        """What the game pays if it is left as it stands."""
        invalid = -0.1 * sum(1 for t in self.tries if t.reason)
        if self.won:
            return Reward(1.0, -0.05 * (len(self.tries) - 1), 0.0, invalid, 0.0)
        best = max((2 * t.marks.count(RIGHT) + t.marks.count(ELSEWHERE) for t in self.tries), default=0)
        return Reward(0.0, 0.0, 0.02 * best, invalid, -0.1 * self.tries_left)

    def _why_invalid(self, word: str) -> str:
        if len(word) != LETTERS or not (word.isascii() and word.isalpha()):
            return f"a guess is {LETTERS} letters from a to z"
        if word not in self.words.allowed:
            return "not in the word list"
        if any(word == t.word for t in self.tries):
            return "guessed before"
        return ""

    def _text(self, word: str, marks: str) -> str:
        left = self.tries_left - 1
        shown = render(word, marks) if marks else "invalid word"
        if marks == RIGHT * LETTERS:
            return f"{shown} won"
        return f"{shown} {left} left" if left else f"{shown} lost"
