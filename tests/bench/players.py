"""Many sessions that play whole games over WebSockets at once, as fast as they are answered, and check each answer.

Knows OpenEnv's protocol; what is a right answer is for the caller to say.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

DEADLINE_S = 300.0

Answers = list[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """`words` gives a game's guesses from its seed; `is_right` whether the answers are those of that very game."""

    words: Callable[[int], list[str]]
    is_right: Callable[[int, Answers], bool]
    games: int = 4


@dataclass
class Outcome:
    """`failed` are sessions that were refused, broke off or were answered wrongly."""

    sessions: int
    failed: int = 0
    connect_s: float = 0.0
    play_s: float = 0.0
    resident_bytes: int = 0
    cpu_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def steps_per_s(self) -> float:
        return len(self.latencies_s) / self.play_s


@dataclass(frozen=True)
class Use:
    """What the server has used: memory in bytes, and time of a processor in seconds."""

    resident_bytes: int
    cpu_s: float


async def play(url: str, sessions: int, plan: Plan, use: Callable[[], Use]) -> Outcome:
    """Connect all, start a game in each, then play all games at once; the answers are checked when all are there."""
    outcome, before = Outcome(sessions), use()
    started = time.perf_counter()
    opened = await asyncio.gather(*(_open(url, outcome) for _ in range(sessions)))
    outcome.connect_s = time.perf_counter() - started
    sockets = [socket for socket in opened if socket is not None]
    games = [{seed: plan.words(seed) for seed in range(n * plan.games, (n + 1) * plan.games)} for n in range(sessions)]
    started, connected = time.perf_counter(), use()
    async with asyncio.timeout(DEADLINE_S):
        played = await asyncio.gather(*(_play(*game, outcome) for game in zip(sockets, games, strict=False)))
    outcome.play_s = time.perf_counter() - started
    outcome.resident_bytes = use().resident_bytes - before.resident_bytes
    outcome.cpu_s = use().cpu_s - connected.cpu_s
    for answers in played:
        _check(answers, plan, outcome)
    await asyncio.gather(*(socket.close() for socket in sockets))
    return outcome


async def _open(url: str, outcome: Outcome) -> ClientConnection | None:
    try:
        socket = await connect(url.replace("http", "ws", 1) + "/ws", proxy=None, open_timeout=60)
        await _ask(socket, "reset", seed=0)
    except (OSError, WebSocketException, ValueError) as error:
        _fail(outcome, error)
        return None
    return socket


async def _play(socket: ClientConnection, games: dict[int, list[str]], outcome: Outcome) -> dict[int, Answers]:
    """The answers by seed, of as many games as could be played."""
    answers: dict[int, Answers] = {}
    try:
        for seed, words in games.items():
            await _ask(socket, "reset", seed=seed)
            answers[seed] = [await _timed(socket, word, outcome) for word in words]
    except (OSError, WebSocketException, ValueError) as error:
        _fail(outcome, error)
    return answers


def _check(played: dict[int, Answers], plan: Plan, outcome: Outcome) -> None:
    wrong = [seed for seed, answers in played.items() if not plan.is_right(seed, answers)]
    if wrong:
        _fail(outcome, ValueError(f"seed {wrong[0]} was answered {played[wrong[0]]}"))


async def _timed(socket: ClientConnection, word: str, outcome: Outcome) -> dict[str, Any]:
    started = time.perf_counter()
    answer = await _ask(socket, "step", word=word)
    outcome.latencies_s.append(time.perf_counter() - started)
    return answer


async def _ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    await socket.send(json.dumps({"type": kind, "data": data}))
    answer: dict[str, Any] = json.loads(await socket.recv())
    if answer["type"] != "observation":
        raise ValueError(f"{kind} was answered {answer}")
    return answer["data"]  # type: ignore[no-any-return]


def _fail(outcome: Outcome, error: Exception) -> None:
    outcome.failed += 1
    outcome.reasons.append(f"{type(error).__name__}: {error}"[:200])
