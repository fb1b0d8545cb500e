"""What a game pays: five parts whose sum is the reward, and the weights they are made with. Pure; knows no rules.

    solved     1 for a won game, and for no other
    greens     if not won, 0.04 for each letter in its right place in the best guess so far
    yellows    if not won, 0.02 for each letter of that guess that belongs elsewhere
    invalid    -0.1 for each invalid guess
    turns      if won, -0.05 for each try before the winning one; if not, -0.1 for each try not played

With these weights it lies between -0.6 and 1, and is worth the same however the game ends. Other weights are accepted
if they leave nothing to be had but by playing well: every win pays more than every other game, one more valid guess
never costs anything, and invalid guesses never pay more than leaving the game would.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from shared.wordle import ELSEWHERE, GUESSES, LETTERS, RIGHT

HEAVIEST = 100.0


@dataclass(frozen=True)
class Shaping:
    """All are amounts of at least 0; `invalid`, `turn` and `unplayed` are what is taken off."""

    solved: float = 1.0
    green: float = 0.04
    yellow: float = 0.02
    invalid: float = 0.1
    turn: float = 0.05
    unplayed: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= HEAVIEST:
                raise ValueError(f"the weight {name} is {value!r:.40}; it must be a number from 0 to {HEAVIEST:g}")
        if self.yellow > self.green:
            raise ValueError(f"a yellow letter may not pay more ({self.yellow}) than a green one ({self.green})")
        if self.unplayed > self.invalid:
            raise ValueError(
                f"an invalid guess must cost at least as much ({self.invalid}) as a try not played ({self.unplayed}), "
                "or ending a game with nonsense pays more than leaving it"
            )
        if self.worst_win <= self.best_loss:
            raise ValueError(
                f"the worst win would pay {self.worst_win:g} and the best lost game {self.best_loss:g}; "
                "raise solved, or lower the other weights"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The weights named, the others as they are. ValueError for a name or value that cannot be."""
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"no weight named {unknown[0]!r:.40}; choose from {', '.join(known)}")
        return cls(**given)

    @property
    def worst_win(self) -> float:
        """What a win on the last try pays, after invalid guesses only."""
        return self.solved - (GUESSES - 1) * (self.turn + self.invalid)

    @property
    def best_loss(self) -> float:
        """No guess but the secret has five letters in place, and none has four with the fifth elsewhere."""
        return max((LETTERS - 1) * self.green, (LETTERS - 2) * self.green + 2 * self.yellow)

    @property
    def bounds(self) -> tuple[float, float]:
        return -GUESSES * self.invalid, self.solved


PLAIN = Shaping()


@dataclass(frozen=True)
class Reward:
    """The parts of the reward; `total` is their sum."""

    solved: float
    greens: float
    yellows: float
    invalid: float
    turns: float

    @property
    def total(self) -> float:
        return round(math.fsum(vars(self).values()), 6)

    @property
    def parts(self) -> dict[str, float]:
        return {name: round(value, 6) + 0.0 for name, value in vars(self).items()}


def of_win(shaping: Shaping, tries: int, invalid: int) -> Reward:
    return Reward(shaping.solved, 0.0, 0.0, -shaping.invalid * invalid, -shaping.turn * (tries - 1))


def of_other(shaping: Shaping, boards: list[str], tries_left: int, invalid: int) -> Reward:
    """A game that is lost, or left as it stands; `boards` are the marks of its valid guesses."""
    greens, yellows = max(
        ((shaping.green * marks.count(RIGHT), shaping.yellow * marks.count(ELSEWHERE)) for marks in boards),
        key=math.fsum,
        default=(0.0, 0.0),
    )
    return Reward(0.0, greens, yellows, -shaping.invalid * invalid, -shaping.unplayed * tries_left)
