"""The rollouts as games: a board where it is Wordle, the model's own text always. Pure.

All of it is what a model wrote, or what was made of that: none of it is trusted, the page shows it as text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shared.monitor.numbers import number_in, whole_in
from shared.monitor.snapshot import Snapshot
from shared.monitor.words import SHORT, cut, number
from shared.types import Json
from shared.wordle import LETTERS

SHOWN = 12
MOST_LETTERS = 2000
MOST_TURNS = 20
MOST_PARTS = 12
CAPTION = (
    "A few rollouts of each version, as the model played them. Read some after the reward has risen: "
    "a trick that the reward does not know looks like learning."
)
Solved = Literal["all", "solved", "not solved"]

_ANSWER = re.compile(rf"((?:[A-Z][+?-]){{{LETTERS}}}) (?:won|lost|[0-9] left)\b.*", re.DOTALL)
_INVALID = re.compile(r"invalid word (?:lost|[0-9] left)\b.*", re.DOTALL)
_WHOLE = re.compile(r"[0-9]{1,9}")
_REAL = re.compile(r"[+-]?[0-9]{0,9}\.?[0-9]{1,9}")
_MARKS = {"+": "right", "?": "elsewhere", "-": "absent", "x": "invalid"}


@dataclass(frozen=True)
class Choice:
    """What a viewer wants to see; `version` None for the newest, `least` None for any reward."""

    version: int | None = None
    solved: Solved = "all"
    least: float | None = None

    @classmethod
    def of(cls, version: object = None, solved: object = None, least: object = None) -> "Choice":
        """From what a viewer entered; what is no number chooses nothing."""
        number, reward = str(version or "").strip(), str(least or "").strip()
        wanted: Solved = "solved" if solved == "solved" else "not solved" if solved == "not solved" else "all"
        return cls(int(number) if _WHOLE.fullmatch(number) else None, wanted, _real(reward))


def games(snapshot: Snapshot, choice: Choice) -> list[Json]:
    """The chosen ones, the newest first."""
    found: list[Json] = []
    for version in sorted(snapshot.rollouts, reverse=True):
        for place, rollout in enumerate(snapshot.rollouts[version]):
            if choice.version in (None, version) and len(found) < SHOWN and _is_chosen(rollout, choice):
                found.append(_game(version, place, rollout))
    return found


def line(snapshot: Snapshot, choice: Choice, shown: int) -> str:
    """What is shown of what there is, in words."""
    versions = snapshot.rollout_versions
    if not versions:
        return "No rollouts are in the bucket yet."
    where = f"there are some of {len(versions)} versions, {versions[0]} to {versions[-1]}"
    if choice.version is not None and choice.version not in versions:
        return f"Version {choice.version} has no rollouts; {where}."
    if choice.version is not None and choice.version not in snapshot.rollouts:
        return f"The rollouts of version {choice.version} are being read."
    if shown:
        return f"{shown} games are shown; {where}."
    looked = [choice.version] if choice.version is not None else sorted(snapshot.rollouts)
    return f"No game of {_versions(looked)} is as chosen; {where}."


def _versions(looked: Sequence[int]) -> str:
    if len(looked) < 2:
        return f"version {looked[0]}" if looked else "the versions that were read"
    return f"the {len(looked)} newest versions, {looked[0]} to {looked[-1]}, which were looked at,"


def _is_chosen(rollout: Json, choice: Choice) -> bool:
    numbers = _numbers(rollout)
    if choice.solved != "all" and (numbers.get("environment/solved", 0) > 0) != (choice.solved == "solved"):
        return False
    return choice.least is None or numbers.get("reward", float("-inf")) >= choice.least


def _game(version: int, place: int, rollout: Json) -> Json:
    numbers, turns = _numbers(rollout), list(_turns(rollout))[:MOST_TURNS]
    solved = numbers.get("environment/solved")
    played_by = whole_in(rollout.get("version"))
    return {
        "name": f"{version}-{place}",
        "title": f"Version {version}" + (f", played by {played_by}" if played_by not in (None, version) else ""),
        "outcome": "" if solved is None else "solved" if solved > 0 else "not solved",
        "reward": number(numbers.get("reward"), "+.2f"),
        "parts": [
            {"name": cut(name.removeprefix("environment/reward_"), SHORT), "value": f"{value:+.2f}"}
            for name, value in numbers.items()
            if name.startswith("environment/reward_")
        ][:MOST_PARTS],
        "board": [turn["tiles"] for turn in turns if turn["tiles"]],
        "turns": turns,
    }


def _turns(rollout: Json) -> Iterator[Json]:
    """One for each message: who says what; with `tiles` for an answer to a guess."""
    guess = ""
    for message in _messages(rollout):
        role, content = _text(message.get("role")), _text(message.get("content"))
        if role == "assistant":
            calls = list(_calls(message))
            guess = _guess(calls) or guess
            said = "\n".join(
                part for part in (content, *(f"{name}({arguments})" for name, arguments in calls)) if part
            )
            yield {"role": "model", "text": cut(said, MOST_LETTERS), "tiles": []}
        elif role == "tool":
            yield {"role": "answer", "text": cut(content, MOST_LETTERS), "tiles": _tiles(content, guess)}
        else:
            yield {"role": cut(role, SHORT), "text": cut(content, MOST_LETTERS), "tiles": []}


def _calls(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and arguments of the tools that were called."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments")
            told = arguments.values() if isinstance(arguments, dict) else [arguments]
            yield _text(function.get("name")), ", ".join(str(value) for value in told)


def _guess(calls: Sequence[tuple[str, str]]) -> str:
    return calls[-1][1] if calls and calls[-1][0] == "guess" else ""


def _tiles(answer: str, guess: str) -> list[Json]:
    """Letters and marks of one try; none for an answer that is no try's."""
    if found := _ANSWER.fullmatch(answer):
        letters, marks = found[1][::2], found[1][1::2]
    elif _INVALID.fullmatch(answer):
        letters = guess.strip().upper()[:LETTERS].ljust(LETTERS)
        marks = "x" * LETTERS
    else:
        return []
    return [{"letter": letter, "mark": _MARKS[mark]} for letter, mark in zip(letters, marks, strict=True)]


def _real(text: str) -> float | None:
    return float(text) if _REAL.fullmatch(text) else None


def _messages(rollout: Json) -> list[Mapping[str, Any]]:
    messages = rollout.get("messages")
    return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []


def _numbers(rollout: Json) -> dict[str, float]:
    numbers = rollout.get("numbers")
    items = numbers.items() if isinstance(numbers, dict) else []
    return {name: found for name, value in items if (found := number_in(value)) is not None}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
