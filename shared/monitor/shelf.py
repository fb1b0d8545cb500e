"""The page's pieces, made once for all who look, and again only when what they are made of has changed.

Knows which part of a snapshot a piece is made of; knows no Gradio, and not who has which piece.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any

import pandas as pd

from shared.monitor import pieces
from shared.monitor.games import Choice
from shared.monitor.snapshot import Snapshot

MOST = 64
"""Of kept parts. One that nobody has asked for since then is made again."""


@dataclass(frozen=True)
class Piece:
    """`mark` is another one for every other content: whoever has it need not be given it again."""

    mark: int
    content: Any


@dataclass(frozen=True)
class _Part:
    made_of: tuple[Any, ...]
    pieces: tuple[Piece, ...]


class Shelf:
    """May be asked from many threads: what several want at once, one of them makes."""

    def __init__(self) -> None:
        self._parts: dict[tuple[Any, ...], _Part] = {}
        self._marks = count(1)
        self._lock = threading.Lock()

    def pieces(self, snapshot: Snapshot, choice: Choice, now: datetime) -> list[Piece]:
        """All of the page, in the order of `made`'s parts: of now, runs, plots, frames, bucket and games."""
        with self._lock:
            return [piece for part in self._of(snapshot, choice, now) for piece in part]

    def _of(self, snapshot: Snapshot, choice: Choice, now: datetime) -> Iterator[Sequence[Piece]]:
        key = snapshot.run.run_id if snapshot.run else ""
        second = now.replace(microsecond=0)
        yield self._part(("now", key), (snapshot.number, second), lambda: pieces.of_now(snapshot, second))
        yield self._part(("runs", key), (snapshot.runs,), lambda: [[run.run_id for run in snapshot.runs]])
        drawn = _drawn(snapshot)
        yield self._part(("heads", key), drawn, lambda: pieces.of_plots(snapshot))
        yield self._part(("frames", key), drawn, lambda: pieces.frames(snapshot))
        yield self._part(("bucket", key), (snapshot.number,), lambda: pieces.of_bucket(snapshot))
        played = (snapshot.rollout_versions, snapshot.rollouts)
        yield self._part(("games", key, choice), played, lambda: [pieces.of_games(snapshot, choice)])

    def _part(self, key: tuple[Any, ...], made_of: tuple[Any, ...], make: Callable[[], list[Any]]) -> Sequence[Piece]:
        before = self._parts.pop(key, None)
        if before is None or before.made_of != made_of:
            before = _Part(made_of, tuple(self._marked(before.pieces if before else (), make())))
        self._parts[key] = before  # last: the first is the one that was asked for longest ago
        if len(self._parts) > MOST:
            del self._parts[next(iter(self._parts))]
        return before.pieces

    def _marked(self, before: Sequence[Piece], contents: list[Any]) -> Iterator[Piece]:
        for place, content in enumerate(contents):
            is_known = place < len(before) and _is_same(before[place].content, content)
            yield before[place] if is_known else Piece(next(self._marks), content)


def _drawn(snapshot: Snapshot) -> tuple[Any, ...]:
    """What plots are made of."""
    syncs = [answer.document.get("last_sync") for answer in snapshot.replicas.values()]
    return snapshot.run, snapshot.manifests, snapshot.extra_anchors, snapshot.end, syncs


def _is_same(one: Any, other: Any) -> bool:
    return one.equals(other) if isinstance(one, pd.DataFrame) else bool(one == other)
