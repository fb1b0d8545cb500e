"""What is worth a sentence, and how grave it is."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["bad", "note", "wait", "good"]


@dataclass(frozen=True)
class Finding:
    """`state` is the word for it."""

    level: Level
    state: str
    sentence: str


def unstopped(sentence: str) -> str:
    """To go on after it, or to end it once."""
    return sentence.strip().rstrip(".")
