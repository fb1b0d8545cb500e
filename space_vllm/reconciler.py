"""The one task that moves the server from version to version. Messages only leave requests.

It finds the cheapest way to what is asked for and has it synced. Whatever fails, the server goes on with the weights
it has, or shuts its door and builds them anew; it never waits for a human.
"""

import asyncio
import contextlib
import time

from shared.errors import BucketError, ChainError, SyncError
from shared.types import Manifest, Run, now
from space_vllm.advance import FATAL, Advance
from space_vllm.engine import Deadlines, Engine, EngineError
from space_vllm.log import LOG
from space_vllm.requests import Request, Target
from space_vllm.source import Source
from space_vllm.space import Door, Status, at_most
from space_vllm.syncer import RefusedError, Syncer


class Reconciler:
    def __init__(self, engine: Engine, source: Source, door: Door, deadlines: Deadlines, recount_s: float) -> None:
        """`recount_s` is the period of the recounts of what is served; 0 for none."""
        self.status = Status()
        self._source = source
        self._door = door
        self._deadlines = deadlines
        self._recount_s = recount_s
        self._syncer = Syncer(engine, door)
        self._advance = Advance(engine, source, self._syncer, door, self.status)
        self._requests: list[Request] = []
        self._next_recount = time.monotonic() + recount_s
        self._is_suspect = False
        self._wake = asyncio.Event()

    # What messages do

    def ask(self, request: Request) -> None:
        self._requests.append(request)
        self._wake.set()

    async def already_serves(self, request: Request) -> bool:
        """Told at once, whatever is being synced; False as well where only a sync can tell."""
        served = self.status.served
        if served is not None and served.run_id == request.run_id and served.version >= request.version:
            with contextlib.suppress(SyncError):
                request.run = await self._source.run(request.run_id)
        return self.serves(request)

    def serves(self, request: Request) -> bool:
        """By the run, not by its id alone: a run may have been begun anew since a version of it went live."""
        served = self.status.served
        if not self._door.is_open or served is None or request.run is None:
            return False
        return served.run == request.run and served.version >= request.version

    # The task

    async def run(self) -> None:
        """Never returns. With the door closed it tries again by itself, else it waits for messages."""
        delay = self._deadlines.retry
        while True:
            requests, self._requests = self._requests, []
            self._wake.clear()
            try:
                await self._attempt(requests)
                await self._idle()
            except Exception as error:  # whatever it is: without this task nothing is verified any more
                LOG.exception("the reconciler failed")
                self._door.shut(f"the reconciler failed: {error!r}")
            if self._door.is_open:
                delay = self._deadlines.retry
            else:
                await at_most(delay, self._wake)
                delay = min(2 * delay, self._deadlines.slowest_retry)

    async def _attempt(self, requests: list[Request]) -> None:
        failure: SyncError | None = None
        try:
            await self._reach(requests)
            await self._open()
        except SyncError as error:
            failure = error
        except Exception as error:  # this task outlives whatever vLLM raises
            LOG.exception("a sync failed unexpectedly")
            failure = EngineError(f"the sync failed unexpectedly: {error!r}")
        if failure is not None:
            await self._fail(failure)
        for request in requests:
            request.is_answered, request.error = True, request.error or failure
        self._settle_state()

    async def _reach(self, requests: list[Request]) -> None:
        await self._syncer.recover()
        if self.status.served is None:
            await self._advance.join()
        failure = await self._catch_up() if not self._door.is_open else None
        for target in await self._targets(requests):
            await self._try(target)
        if failure is not None and all(request.error for request in requests):
            raise failure

    async def _catch_up(self) -> SyncError | None:
        """To the newest version, never to less than was served before; without any, to the base model.

        Returns why that failed, when something else may still be reached.
        """
        self.status.change(self._advance.state_behind())
        best = self._advance.best
        newest = await self._source.newest(best.run if best else None)
        target = max(filter(None, [Target(*newest) if newest else None, best]), key=lambda one: one.age, default=None)
        if target is None:
            if self._syncer.held is None:
                await self._advance.rebuild_base()
            return None
        try:
            await self._advance.to(target)
        except FATAL:
            raise
        except SyncError as error:
            return error
        return None

    async def _open(self) -> None:
        """Only on weights that were counted as a whole since they were changed last."""
        if not self._door.is_open:
            if not self._syncer.is_recounted:
                await self._syncer.recount(lambda: True, anew=True)
            self._advance.open()

    async def _fail(self, failure: SyncError) -> None:
        """A version of a run that was reached before the failure is served; what may pass by itself is retried."""
        self._note(failure)
        if self._advance.may_open() and not isinstance(failure, BucketError | EngineError):
            try:
                await self._open()
            except SyncError as error:
                self._note(error)
        if not self._door.is_open:
            self._door.reason = str(failure)

    def _note(self, failure: SyncError) -> None:
        self._source.forget()
        self._next_recount, self._is_suspect = time.monotonic(), True  # what did not fit may be what is live
        self.status.last_error = str(failure)
        counters = self.status.counters
        counters.failed += 1
        counters.undone += isinstance(failure, RefusedError)
        counters.lost = self._syncer.losses
        LOG.warning("no sync: %s", failure)

    async def _idle(self) -> None:
        """Until a message arrives; recounts what is served from time to time."""
        while not self._wake.is_set() and self._door.is_open:
            if not self._recount_s:
                await self._wake.wait()
            elif (left := self._next_recount - time.monotonic()) > 0:
                await at_most(left, self._wake)
            else:
                await self._recount()

    async def _recount(self) -> None:
        anew, self._is_suspect = self._is_suspect, False
        try:
            if await self._syncer.recount(lambda: not self._wake.is_set(), anew):
                self.status.counters.recounts += 1
                self.status.recounted_at = now()
                self._next_recount = time.monotonic() + self._recount_s
        except SyncError as error:
            self._note(error)
            self._next_recount = time.monotonic() + self._deadlines.retry
            self._settle_state()

    def _settle_state(self) -> None:
        self.status.places = self._syncer.places
        self.status.change("serving" if self._door.is_open else self._advance.state_behind())

    # From requests to versions

    async def _targets(self, requests: list[Request]) -> list[Target]:
        """What the bucket says of the requests, the newest first; the others have their errors."""
        alike: dict[tuple[str, int, str], list[Request]] = {}
        for request in requests:
            alike.setdefault((request.run_id, request.version, request.path), []).append(request)
        targets = []
        for same in alike.values():
            try:
                run, manifest = await self._find(same[0])
                for request in same:
                    request.run = run
                targets.append(Target(run, manifest, tuple(same)))
            except SyncError as error:
                self._refuse(same, error)
        return sorted(targets, key=lambda target: target.age, reverse=True)

    async def _find(self, request: Request) -> tuple[Run, Manifest]:
        run = await self._source.run(request.run_id)
        self._advance.check_age(run)
        manifest = await self._source.manifest(run, request.version)
        if request.path != manifest.path:
            raise ChainError(f"version {request.version} lies at {manifest.path!r}, not at {request.path!r}")
        return run, manifest

    async def _try(self, target: Target) -> None:
        """A version that cannot be reached stands in nobody else's way."""
        try:
            await self._advance.to(target)
        except FATAL:
            raise
        except SyncError as error:
            self._refuse(target.requests, error)

    def _refuse(self, requests: list[Request] | tuple[Request, ...], error: SyncError) -> None:
        for request in requests:
            request.error = error
        self._note(error)
