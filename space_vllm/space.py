"""What the parts of the Space know of each other: the door that the guard keeps, and what is served and happened."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shared.types import Kind, Run

State = Literal["starting", "catching_up", "serving", "staging", "applying", "dirty"]


@dataclass
class Door:
    """Closed unless verified weights are live. Requests that were inside when it was shut must not be answered."""

    is_open: bool = False
    reason: str = "the server is starting"
    closings: int = 0

    def open(self) -> None:
        self.is_open, self.reason = True, ""

    def shut(self, reason: str) -> None:
        self.is_open, self.reason = False, reason
        self.closings += 1


@dataclass(frozen=True)
class Served:
    """A verified version that is live. Without a `run` it is the base model, version 0 of no run."""

    run: Run | None
    version: int
    fingerprint: str

    @property
    def run_id(self) -> str | None:
        return self.run.run_id if self.run else None


@dataclass(frozen=True)
class Timing:
    """Milliseconds; `pause_ms` is the time with no token generated, `apply_ms` the worker's part of it."""

    stage_ms: float = 0.0
    pause_ms: float = 0.0
    apply_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Sync(Timing):
    """One version, end to end. `nbytes` were fetched; `reprefilled` requests were in flight at the pause."""

    run_id: str
    version: int
    kind: Kind
    nbytes: int
    sparsity: float
    reprefilled: int

    def log_line(self) -> str:
        return (
            f"sync v{self.version} {self.kind} {self.nbytes / 1e6:.1f} MB sparsity {self.sparsity:.4f} | "
            f"stage {self.stage_ms / 1e3:.2f}s pause {self.pause_ms / 1e3:.2f}s verified"
        )


@dataclass
class Counters:
    """Since the server started. `undone` versions were placed wrongly and taken back; `lost` counts how often nobody
    knew what was live, `recounts` the full recounts of the live weights that found what they should.
    """

    syncs: int = 0
    failed: int = 0
    payload_bytes: int = 0
    reprefilled: int = 0
    undone: int = 0
    lost: int = 0
    recounts: int = 0

    def add(self, sync: Sync) -> None:
        self.syncs += 1
        self.payload_bytes += sync.nbytes
        self.reprefilled += sync.reprefilled


@dataclass
class Status:
    """What `GET /weights/status` tells, apart from the settings.

    `recounted_at` is when all live weights were last found to be what they should, by a recount in the background.
    `places` counts the tensors that are written in place, and those that go through vLLM's reload.
    """

    state: State = "starting"
    served: Served | None = None
    last_sync: Sync | None = None
    last_error: str | None = None
    recounted_at: str | None = None
    counters: Counters = field(default_factory=Counters)
    places: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()

    @property
    def version(self) -> int | None:
        return self.served.version if self.served else None

    def reached(self, version: int) -> bool:
        return self.served is not None and self.served.version >= version

    def record(self, served: Served, sync: Sync) -> None:
        self.served, self.last_sync = served, sync
        self.counters.add(sync)
        self.announce()

    def change(self, state: State) -> None:
        self.state = state
        self.announce()

    def announce(self) -> None:
        """Whoever waits for something looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, met: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition on this status, or on who announces; whether it was met in time."""
        deadline = time.monotonic() + seconds
        while not met() and (left := deadline - time.monotonic()) > 0:
            await at_most(left, self._changed)
        return met()

    def to_json(self) -> dict[str, Any]:
        served = self.served
        return {
            "run_id": served.run_id if served else None,
            "version": self.version,
            "fingerprint": served.fingerprint if served else None,
            "state": self.state,
            "last_sync": asdict(self.last_sync) if self.last_sync else None,
            "last_error": self.last_error,
            "recounted_at": self.recounted_at,
            "counters": asdict(self.counters),
            "tensors": self.places,
        }


async def at_most(seconds: float, event: asyncio.Event) -> None:
    """Wait for the event, or until the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
