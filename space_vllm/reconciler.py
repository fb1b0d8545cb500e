"""The one task that moves the server from version to version. Messages only set its target.

It plans, downloads and stages while tokens are generated, then pauses shortly for each version. Whatever fails, the
server goes on with the weights it has, or shuts its door and tries again from an anchor; it never waits for a human.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shared.bucket import Bucket
from shared.chain import Held, find_path
from shared.errors import BucketError, ChainError, SyncError
from shared.reader import RunReader, newest_run
from shared.types import Manifest, Run
from space_vllm.engine import Deadlines, Engine, EngineError
from space_vllm.space import Door, Served, State, Status, Sync, Timing

T = TypeVar("T")

_LOG = logging.getLogger("vllm.delta_sync")  # below "vllm", so that vLLM's handlers print it


class OlderRunError(SyncError):
    """A message for a run that was created before the one that is followed."""


@dataclass(frozen=True)
class Target:
    """A version to reach, and where the message said it lies; None when nobody said so."""

    run: Run
    version: int
    path: str | None = None

    @property
    def age(self) -> tuple[str, str, int]:
        return (*self.run.age, self.version)


class Reconciler:
    def __init__(
        self, engine: Engine, open_bucket: Callable[[], Bucket], run_id: str | None, door: Door, deadlines: Deadlines
    ) -> None:
        """`run_id` None follows the newest run. `open_bucket` is called anew for each attempt."""
        self.status = Status()
        self._engine = engine
        self._open_bucket = open_bucket
        self._run_id = run_id
        self._door = door
        self._deadlines = deadlines
        self._reader: RunReader | None = None
        self._target: Target | None = None
        self._asked = self._answered = 0
        self.failure: SyncError | None = None  # of the last attempt
        self._held: Held | None = None  # what the worker holds and the model has; None while nobody knows
        self._paused = False
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()

    # What messages do

    async def ask(self, run_id: str, version: int, path: str) -> int:
        """Set the target, unless it is served or a newer one is set; returns a ticket for `is_answered`.

        Raises OlderRunError; ChainError when there is no such run; BucketError when the bucket cannot say.
        """
        served = self.status.served
        run = served.run if served and served.run_id == run_id else await self._find_run(run_id)
        assert run is not None
        if served and served.run and run.age < served.run.age:
            raise OlderRunError(f"run {run_id!r} is older than run {served.run_id!r}, which is followed")
        target = Target(run, version, path)
        if self._target is None or self._target.age <= target.age:
            self._target = target
        self._asked += 1
        self._wake.set()
        return self._asked

    def serves(self, run_id: str, version: int) -> bool:
        served = self.status.served
        return self._door.is_open and served is not None and served.run_id == run_id and served.version >= version

    def is_answered(self, ticket: int) -> bool:
        """Whether an attempt that began after the ticket was given has ended."""
        return self._answered >= ticket

    async def until(self, met: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition on this reconciler; whether it was met in time."""
        deadline = time.monotonic() + seconds
        while not met() and (left := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                break
        return met()

    # The task

    async def run(self) -> None:
        """Never returns. With the door closed it tries again by itself, else it waits for a message."""
        delay = self._deadlines.retry
        while True:
            ticket = self._asked
            self._wake.clear()
            self.failure = await self._attempt()
            self._answered = ticket
            self._notify()
            if self._door.is_open:
                delay = self._deadlines.retry
                await self._wake.wait()
                continue
            try:
                await asyncio.wait_for(self._wake.wait(), delay)
            except TimeoutError:
                delay = min(2 * delay, self._deadlines.slowest_retry)

    async def _attempt(self) -> SyncError | None:
        try:
            await self._reach()
        except SyncError as error:
            failure = error
        except Exception as error:  # this task outlives whatever vLLM raises
            _LOG.exception("a sync failed unexpectedly")
            failure = EngineError(f"the sync failed unexpectedly: {error!r}")
        else:
            self._door.open()
            self._set_state("serving")
            return None
        self._note(failure)
        return failure

    def _note(self, failure: SyncError) -> None:
        """A version of a run that was reached before the failure is served; what may pass by itself is retried."""
        self._reader = None  # what it has read may be what was wrong
        self.status.last_error = str(failure)
        self.status.counters.failed += 1
        _LOG.warning("no sync: %s", failure)
        served = self.status.served
        settled = self._held is not None and not self._paused and not isinstance(failure, BucketError | EngineError)
        if settled and served is not None and served.run is not None:
            self._door.open()
        if not self._door.is_open:
            self._door.reason = str(failure)
        self._set_state("serving" if self._door.is_open else self._state_behind())

    def _state_behind(self) -> State:
        if self.status.served is None:
            return "starting"
        return "catching_up" if self._held is not None else "dirty"

    async def _reach(self) -> None:
        if self._paused:
            await self._resume()
        if self.status.served is None:
            self._held = Held(0, await self._engine.join())
            self.status.served = Served(None, 0, self._held.fingerprint)
        target, self._target = self._target, None
        if not self._door.is_open:  # whatever was asked for, the newest version covers it
            self._set_state(self._state_behind())
            target = await self._newest()
        if target is not None:
            await self._go(target)
        elif self._held is None:
            raise ChainError("there is no version in the bucket to rebuild the weights from; publish an anchor")

    async def _newest(self) -> Target | None:
        """None while there is nothing to follow: no run, or no version in it."""
        bucket = await self._bucket()
        try:
            reader = await self._call(self._reader_of, bucket, self._run_id)
            manifest = await self._call(reader.newest)
        except ChainError as error:
            _LOG.info("serving the base model: %s", error)
            return None
        return Target(await self._call(reader.run), manifest.version)

    async def _go(self, target: Target) -> None:
        if self._is_past(target):
            return
        reader = await self._call(self._reader_of, await self._bucket(), target.run.run_id)
        manifest = await self._call(reader.manifest, target.version)
        if target.path is not None and target.path != manifest.path:
            raise ChainError(f"version {target.version} lies at {manifest.path!r}, not at {target.path!r}")
        path = await self._call(find_path, manifest, self._held, reader.manifest)
        if not path:  # the same weights, held under another run or as the base model
            self._record(target.run, manifest, Timing())
        for number, step in enumerate(path):
            behind = not self._door.is_open or number < len(path) - 1
            await self._sync(reader, step, target.run, behind)

    def _is_past(self, target: Target) -> bool:
        served = self.status.served
        if self._held is None or served is None or served.run_id != target.run.run_id:
            return False
        return served.version >= target.version

    async def _sync(self, reader: RunReader, manifest: Manifest, run: Run, behind: bool) -> None:
        self._set_state("staging" if not behind else self._state_behind())
        started = time.perf_counter()
        async with self._fetched(reader, manifest) as files:
            await self._engine.stage(manifest, files)
        stage_ms = _ms_since(started)
        if not behind:
            self._set_state("applying")
        reprefilled, started = self._engine.in_flight(), time.perf_counter()
        self._paused = True
        try:
            await self._engine.pause()
            apply_ms = await self._apply(manifest)
            await self._engine.name_weights(f"{run.run_id}/{manifest.version}")
        finally:
            await self._resume()
        self._record(run, manifest, Timing(stage_ms, _ms_since(started), apply_ms), reprefilled, manifest.nbytes)

    def _record(self, run: Run, manifest: Manifest, timing: Timing, reprefilled: int = 0, nbytes: int = 0) -> None:
        served = Served(run, manifest.version, manifest.fingerprint)
        sync = Sync(
            run_id=run.run_id,
            version=manifest.version,
            kind=manifest.kind,
            nbytes=nbytes,
            sparsity=manifest.sparsity,
            reprefilled=reprefilled,
            **vars(timing),
        )
        self.status.record(served, sync)
        _LOG.info(sync.log_line())
        self._notify()

    async def _apply(self, manifest: Manifest) -> float:
        """Milliseconds. The door is shut before generation resumes on weights that nobody knows."""
        held, self._held = self._held, None
        try:
            outcome = await self._engine.apply()
        except BaseException:
            self._door.shut("the worker did not say which weights are live")
            raise
        if outcome.dirty:
            self._door.shut(outcome.error)
            raise SyncError(outcome.error)
        if outcome.error:
            self._held = held
            raise SyncError(outcome.error)
        self._held = Held(manifest.version, manifest.fingerprint)
        return outcome.apply_ms

    async def _resume(self) -> None:
        try:
            await self._engine.resume()
        except BaseException:
            self._door.shut("generation could not be resumed")
            raise
        self._paused = False

    def _set_state(self, state: State) -> None:
        self.status.state = state
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # The bucket

    async def _bucket(self) -> Bucket:
        return await self._call(self._open_bucket)

    async def _find_run(self, run_id: str) -> Run:
        return await self._call(RunReader(await self._bucket(), run_id).run)

    def _reader_of(self, bucket: Bucket, run_id: str | None) -> RunReader:
        """Kept while the run stays the same, with the manifests it has read."""
        run_id = run_id or newest_run(bucket).run_id
        if self._reader is None or self._reader.run_id != run_id:
            self._reader = RunReader(bucket, run_id)
        return self._reader

    @asynccontextmanager
    async def _fetched(self, reader: RunReader, manifest: Manifest) -> AsyncIterator[list[Path]]:
        with ExitStack() as stack:
            yield await self._call(stack.enter_context, reader.fetched(manifest))

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.wait_for(asyncio.to_thread(function, *arguments), self._deadlines.bucket)
        except TimeoutError as error:
            raise BucketError(f"the bucket did not answer within {self._deadlines.bucket} s") from error


def _ms_since(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 3)
