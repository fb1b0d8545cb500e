"""What travels between the environment and its players. Nothing here carries the secret before a game has ended."""

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from shared.wordle import GUESSES


class WordleAction(Action):
    word: str = Field(description="A 5-letter English word; case and white space around it do not matter.")


class WordleObservation(Observation):
    """`reward` is paid once, by the last try. `score` is what the game would pay if it were left now."""

    text: str = Field(default="", description="What the player reads: the task after a reset, then one line per try.")
    marks: str = Field(default="", description="Per letter: + right place, ? other place, - not in the word.")
    valid: bool = Field(default=True, description="False when the guess could not be played; it used up a try.")
    reason: str = Field(default="", description="Why the guess was invalid.")
    won: bool = False
    turn: int = Field(default=0, description="Tries played.")
    tries_left: int = GUESSES
    score: float | None = Field(default=None, description="None when there is no game.")
    parts: dict[str, float] = Field(
        default_factory=dict, description="What the score is the sum of: solved, greens, yellows, invalid, turns."
    )
    secret: str | None = Field(default=None, description="The word, once the game is over.")


class WordleState(State):
    """`step_count` is the number of tries played; `secret` and `seed` are set once the game has ended."""

    words: str | None = None
    board: list[str] = Field(default_factory=list, description="One line per try, as the player read it.")
    over: bool = False
    won: bool = False
    secret: str | None = None
    seed: int | None = None
