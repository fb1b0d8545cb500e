"""From what is held to a version that is asked for: by the cheapest way, and by the next one when that fails.

Decides which files are synced in which order. What is asked for and what follows a failure is the reconciler's.
"""

import contextlib
import logging
from pathlib import Path

from shared.errors import BucketError, SyncError
from shared.types import Manifest, Run
from space_vllm.engine import Engine, EngineError
from space_vllm.requests import OlderRunError, Target
from space_vllm.source import Source
from space_vllm.space import Door, Served, State, Status, Sync, Timing
from space_vllm.syncer import LostError, Syncer

FATAL = (BucketError, EngineError, LostError)  # another way would not help

_LOG = logging.getLogger("vllm.delta_sync")  # below "vllm", so that vLLM's handlers print it


class Advance:
    def __init__(self, engine: Engine, source: Source, syncer: Syncer, door: Door, status: Status) -> None:
        self._engine = engine
        self._source = source
        self._syncer = syncer
        self._door = door
        self._status = status

    def state_behind(self) -> State:
        """While no version is served, or not the one that should be."""
        if self._status.served is None:
            return "starting"
        return "catching_up" if self._syncer.held is not None else "dirty"

    def check_age(self, run: Run) -> None:
        served = self._status.served
        if served and served.run and run.age < served.run.age:
            raise OlderRunError(f"run {run.run_id!r} is older than run {served.run_id!r}, which is followed")

    async def to(self, target: Target) -> None:
        """By the cheapest way; when a step of it fails, by the next one that does without that step."""
        self.check_age(target.run)
        failed: dict[tuple[int, str], SyncError] = {}
        while not self._is_past(target):
            paths = await self._source.paths(target.manifest, self._syncer.held)
            path = next((path for path in paths if not any(_key(step) in failed for step in path)), None)
            if path is None:
                raise next(iter(failed.values()))
            if not path:  # the same weights, held under another run or as the base model
                self._record(target.run, target.manifest, Timing())
                return
            await self._walk(path, target.run, failed)

    async def _walk(self, path: list[Manifest], run: Run, failed: dict[tuple[int, str], SyncError]) -> None:
        served = self._status.served
        if self._door.is_open and served and served.run_id == run.run_id and served.version >= path[0].version:
            self._door.shut(f"building version {path[-1].version} anew from version {path[0].version}")
        step = path[0]
        try:
            async with contextlib.aclosing(self._source.fetched(path)) as fetched:
                for step in path:
                    manifest, files = await anext(fetched)
                    await self._sync(manifest, files, run, behind=not self._door.is_open or step is not path[-1])
        except FATAL:
            raise
        except SyncError as error:
            _LOG.warning("version %s (%s) cannot be used: %s", step.version, step.kind, error)
            failed[_key(step)] = error

    def _is_past(self, target: Target) -> bool:
        served = self._status.served
        if self._syncer.held is None or served is None or served.run_id != target.run.run_id:
            return False
        return served.version >= target.manifest.version

    async def _sync(self, manifest: Manifest, files: list[Path], run: Run, behind: bool) -> None:
        self._status.change("staging" if not behind else self.state_behind())
        reprefilled = 0

        def begin() -> None:
            nonlocal reprefilled
            reprefilled = self._engine.in_flight()
            if not behind:
                self._status.change("applying")

        timing = await self._syncer.sync(manifest, files, begin)
        self._record(run, manifest, timing, reprefilled, manifest.nbytes)
        await self._engine.name_weights(f"{run.run_id}/{manifest.version}")

    def _record(self, run: Run, manifest: Manifest, timing: Timing, reprefilled: int = 0, nbytes: int = 0) -> None:
        sync = Sync(
            run_id=run.run_id,
            version=manifest.version,
            kind=manifest.kind,
            nbytes=nbytes,
            sparsity=manifest.sparsity,
            reprefilled=reprefilled,
            **vars(timing),
        )
        self._status.places = self._syncer.places
        self._status.record(Served(run, manifest.version, manifest.fingerprint), sync)
        _LOG.info(sync.log_line())


def _key(step: Manifest) -> tuple[int, str]:
    return step.version, step.kind
