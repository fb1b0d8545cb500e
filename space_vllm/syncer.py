"""One version made live: staged while tokens are generated, then placed, verified and, when wrong, undone in a pause.

Generation resumes only on verified weights; else the door is shut first and all that runs is aborted. Knows neither
the bucket nor what to do next.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from shared.chain import Held
from shared.errors import SyncError
from shared.types import Manifest
from space_vllm.engine import Engine, EngineError
from space_vllm.outcomes import Progress
from space_vllm.space import Door, Timing


class RefusedError(SyncError):
    """A version was placed and is not what it should be; the one before it is verified to be live again."""


class LostError(SyncError):
    """Nobody knows which weights are live. The door is shut and nothing is in flight."""


class Syncer:
    """`held` is what is verified to be live, None while nobody knows.

    `is_recounted` tells whether all of it was counted since the last change, `places` how its tensors are placed,
    `losses` how often it stopped being known.
    """

    def __init__(self, engine: Engine, door: Door) -> None:
        self._engine = engine
        self._door = door
        self.held: Held | None = None
        self.is_recounted = False
        self.places: dict[str, int] = {}
        self.losses = 0
        self.is_paused = False

    async def join(self) -> Held:
        """Recount the base model, which is live."""
        joined = await self._engine.join()
        self.held, self.is_recounted, self.places = Held(0, joined.fingerprint), True, dict(joined.places)
        return self.held

    async def sync(self, manifest: Manifest, files: Sequence[Path], begin: Callable[[], None]) -> Timing:
        """`begin` is called when the pause begins. Raises RefusedError and LostError, and what staging raises."""
        await self._forget_lost()
        started = time.perf_counter()
        staged = await self._engine.stage(manifest, files)
        return await self._replace(Held(manifest.version, manifest.fingerprint), staged, ms_since(started), begin)

    async def rebuild_base(self, begin: Callable[[], None] = lambda: None) -> Timing:
        """Make the base model live again, from its own files, as version 0."""
        await self._forget_lost()
        started = time.perf_counter()
        staged = await self._engine.stage_base()
        return await self._replace(Held(0, staged.fingerprint), staged, ms_since(started), begin)

    async def recount(self, go_on: Callable[[], bool], anew: bool) -> bool:
        """Whether the recount of the live weights came to its end before `go_on` said no. Raises LostError.

        `anew` counts all of them after now; else what was counted before counts, with the syncs since.
        """
        wrong = await self._engine.recount(go_on, anew)
        if wrong:
            await self._lose(
                f"a recount found {len(wrong)} live tensors, such as {wrong[0]!r}, that are not those of the version "
                "served"
            )
        self.is_recounted |= wrong is not None
        return wrong is not None

    async def recover(self) -> None:
        """Resume when an earlier resume failed."""
        if self.is_paused:
            await self._resume()

    async def _forget_lost(self) -> None:
        """The worker may still take for live what this side has given up."""
        if self.held is None:
            await self._engine.lose()

    async def _replace(self, new: Held, staged: Progress, stage_ms: float, begin: Callable[[], None]) -> Timing:
        begin()
        started = time.perf_counter()
        async with self._pause():
            apply_ms = await self._apply(new)
        self.places = dict(staged.places)
        return Timing(stage_ms, ms_since(started), apply_ms)

    @asynccontextmanager
    async def _pause(self) -> AsyncIterator[None]:
        """Whatever happens in it, generation goes on afterwards: on verified weights, or with nobody inside."""
        before = self.held
        self.is_paused = True
        try:
            await self._engine.pause()
            yield
        finally:
            self.losses += before is not None and self.held is None
            try:
                if self.held is None:
                    await self._clear_out("the worker did not say which weights are live")
            finally:
                await self._resume()

    async def _apply(self, new: Held) -> float:
        """Milliseconds of the worker. What is held is unknown until something is verified."""
        old, self.held = self.held, None
        try:
            return await self._place(new, old)
        except EngineError as error:
            lost = f"nobody knows which weights are live: version {new.version} was being placed when {error}"
            self._door.shut(lost)
            raise LostError(lost) from error

    async def _place(self, new: Held, old: Held | None) -> float:
        placed = await self._engine.apply()
        reason = placed.error
        if not reason:
            verified = await self._engine.verify()
            if verified.fingerprint == new.fingerprint:
                self.held, self.is_recounted = new, False
                return placed.milliseconds
            reason = verified.error or f"afterwards the live weights have fingerprint {verified.fingerprint}"
        reason = f"version {new.version} ({new.fingerprint}) was not placed: {reason}"
        if old is None:
            self._door.shut(reason)
            raise LostError(reason)
        await self._undo(old, reason)
        raise RefusedError(f"{reason}; version {old.version} was put back")

    async def _undo(self, old: Held, reason: str) -> None:
        undone = await self._engine.undo()
        verified = await self._engine.verify()
        if undone.error or verified.fingerprint != old.fingerprint:
            why = undone.error or verified.error or f"the live weights have fingerprint {verified.fingerprint}"
            lost = f"{reason}; version {old.version} could not be put back: {why}"
            self._door.shut(lost)
            raise LostError(lost)
        self.held = old

    async def _lose(self, reason: str) -> None:
        self.held = None
        self.losses += 1
        self.is_paused = True
        try:
            await self._clear_out(reason)
        finally:
            await self._resume()
        raise LostError(reason)

    async def _clear_out(self, reason: str) -> None:
        """Nobody gets in, and nobody who is in gets an answer."""
        if self._door.is_open:
            self._door.shut(reason)
        await self._engine.abort()

    async def _resume(self) -> None:
        try:
            await self._engine.resume()
        except BaseException:
            self._door.shut("generation could not be resumed")
            raise
        self.is_paused = False


def ms_since(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 3)
