"""One game of Wordle: the rules, and what the player reads. Pure; knows no session and no server, and of the reward
only what it is made from.
"""

from dataclasses import dataclass

from shared.wordle import GUESSES, LETTERS, RIGHT, WordList, feedback, render
from space_env.reward import PLAIN, Reward, Shaping, of_other, of_win


class GameOverError(ValueError):
    """A guess in a game that has ended."""


@dataclass(frozen=True)
class Try:
    """One try, used up. `marks` is empty and `reason` is set for an invalid guess; `text` is what the player reads."""

    word: str
    marks: str
    reason: str
    text: str


class Game:
    def __init__(self, secret: str, words: WordList, shaping: Shaping = PLAIN) -> None:
        self.secret = secret
        self.words = words
        self.shaping = shaping
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
        boards = [t.marks for t in self.tries if t.marks]
        invalid = len(self.tries) - len(boards)
        if self.won:
            return of_win(self.shaping, len(self.tries), invalid)
        return of_other(self.shaping, boards, self.tries_left, invalid)

    def _why_invalid(self, word: str) -> str:
        if len(word) != LETTERS or not (word.isascii() and word.isalpha()):
            return f"a guess is {LETTERS} letters from a to z"
        if word not in self.words.allowed:
            return "not in the word list"
        return ""

    def _text(self, word: str, marks: str) -> str:
        left = self.tries_left - 1
        shown = render(word, marks) if marks else "invalid word"
        if marks == RIGHT * LETTERS:
            return f"{shown} won"
        return f"{shown} {left} left" if left else f"{shown} lost"
