"""Who has a seat: how many sessions there may be, in all and for one visitor, and which of them is at play.

Knows no sockets, no frames and no rules of the game.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from space_env.ledger import Ledger
from space_env.models import WordleObservation

CAPACITY = 256
RETRY_AFTER_S = 5
IDLE_S = 300.0
ABANDONED_S = 3600.0


class NoSeatError(Exception):
    """A session that cannot be now; `reason` is one word, the message says when to try again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{message}; try again in {RETRY_AFTER_S} s")
        self.reason = reason


@dataclass(frozen=True)
class Kind:
    """How many sessions one visitor of this kind may have at once, and all together; None: as many as there are."""

    name: str
    each: int | None = None
    together: int | None = None


TRUSTED = Kind("trusted")
STRANGER = Kind("stranger", each=64)
PLAYER = Kind("player", each=4, together=64)
"""Who has the key, or a private address; who comes to a server without a key; who plays on the page."""


@dataclass(frozen=True)
class Caller:
    """Who asks for a session: the visitor's address or network, and what that allows."""

    visitor: str
    kind: Kind


@dataclass(eq=False)
class Session:
    """`asked` is when its last message arrived, `playing` whether a game is under way."""

    caller: Caller
    asked: float = field(default_factory=time.monotonic)
    playing: bool = False
    stepped: bool = False


@dataclass(frozen=True)
class Patience:
    """How long a session may be silent, in seconds: between games, and in the middle of one."""

    idle_s: float = IDLE_S
    abandoned_s: float = ABANDONED_S

    def limit_for(self, session: Session) -> float:
        return self.abandoned_s if session.playing else self.idle_s


PATIENCE = Patience()
_current: ContextVar[Session | None] = ContextVar("session", default=None)


class Desk:
    """Gives out seats and takes them back. All calls are from the server's one event loop."""

    def __init__(self, capacity: int = CAPACITY, patience: Patience = PATIENCE) -> None:
        self.capacity = capacity
        self.patience = patience
        self.ledger = Ledger()
        self._sessions: set[Session] = set()
        self._by_caller: Counter[Caller] = Counter()

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @contextmanager
    def seat(self, caller: Caller) -> Iterator[Session]:
        """A session, for as long as the context lasts. Raises NoSeatError, which is counted."""
        self._check(caller)
        session = Session(caller)
        self._sessions.add(session)
        self._by_caller[caller] += 1
        token = _current.set(session)
        try:
            yield session
        finally:
            _current.reset(token)
            self._sessions.remove(session)
            self._by_caller[caller] -= 1
            self._by_caller += Counter()  # drops the zeros

    def report(self, observation: WordleObservation) -> None:
        """Notes what happened in the session whose message is being answered; outside of one, nothing."""
        session = _current.get()
        if session is None:
            return
        session.playing = not observation.done
        session.stepped = observation.turn > 0
        if observation.done:
            self.ledger.game_ended(observation.won)

    def answered(self, session: Session) -> None:
        if session.stepped:
            session.stepped = False
            self.ledger.step_answered(time.monotonic() - session.asked)

    def status(self) -> dict[str, Any]:
        playing = sum(session.playing for session in self._sessions)
        return {"sessions": self.sessions, "capacity": self.capacity, "playing": playing, **self.ledger.summary()}

    def _check(self, caller: Caller) -> None:
        kind, active = caller.kind, self.sessions
        own = self._by_caller[caller]
        of_kind = sum(count for other, count in self._by_caller.items() if other.kind == kind)
        if active >= self.capacity:
            self._refuse("capacity", f"Server at capacity: {active}/{self.capacity} sessions active")
        if kind.each is not None and own >= kind.each:
            self._refuse("visitor", f"{own} sessions are open from your address, which is as many as may be")
        if kind.together is not None and of_kind >= kind.together:
            self._refuse("visitor", f"{of_kind} visitors play here, which is as many as may")

    def _refuse(self, reason: str, message: str) -> None:
        self.ledger.refused[reason] += 1
        raise NoSeatError(reason, message)
