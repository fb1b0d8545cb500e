"""What the server counts over its life, for `/status`. Knows no sockets and no game."""

import time
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from math import ceil
from typing import Any

KEPT_LATENCIES = 4096
PERCENTILES = (50, 90, 99)


@dataclass
class Ledger:
    """`episodes` are games that ended; `refused` and `reaped` count sessions by reason.

    Reaped are those that the server ended: `idle` and `abandoned` said nothing for long, between games and in one;
    `unresponsive` answered no ping or took nothing of what was sent; `flooding` waited for no answers.
    """

    started: float = field(default_factory=time.monotonic)
    episodes: int = 0
    solved: int = 0
    steps: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    reaped: Counter[str] = field(default_factory=Counter)
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_LATENCIES))

    def game_ended(self, won: bool) -> None:
        self.episodes += 1
        self.solved += won

    def step_answered(self, seconds: float) -> None:
        self.steps += 1
        self.latencies_s.append(seconds)

    def summary(self) -> dict[str, Any]:
        """Latencies are of the newest steps, from when the server has read a message to when its answer is written.
        Not seen: the way there and back, and how long the kernel held a message while the server was busy with others;
        under load that is about as long again.
        """
        return {
            "episodes": self.episodes,
            "solved": self.solved,
            "solve_rate": round(self.solved / self.episodes, 4) if self.episodes else None,
            "steps": self.steps,
            "step_ms": percentiles_ms(self.latencies_s),
            "refused": dict(self.refused),
            "reaped": dict(self.reaped),
            "uptime_s": round(time.monotonic() - self.started, 1),
        }


def percentiles_ms(seconds: Collection[float]) -> dict[str, float | None]:
    """`p50`, `p90`, `p99` in milliseconds: the value that so many of a hundred do not exceed. None without any."""
    ordered = sorted(seconds)
    if not ordered:
        return {f"p{p}": None for p in PERCENTILES}
    return {f"p{p}": round(1000 * ordered[ceil(p / 100 * len(ordered)) - 1], 3) for p in PERCENTILES}
