"""From what is held to a version that is asked for: by the cheapest way, and by the next one when that fails.

Decides which files are synced in which order. What is asked for and what follows a failure is the reconciler's.
"""

import contextlib
from dataclasses import replace
from pathlib import Path

from shared.chain import Held
from shared.errors import BucketError, ChainError, IntegrityError, SyncError
from shared.types import Manifest, Run
from space_vllm.engine import Engine, EngineError
from space_vllm.log import LOG
from space_vllm.requests import OlderRunError, Target
from space_vllm.source import Source
from space_vllm.space import Door, Served, State, Status, Sync, Timing
from space_vllm.syncer import LostError, Syncer

FATAL = (BucketError, EngineError, LostError)  # another way would not help


class Advance:
    """`best` is the newest version that anybody was let in on: nothing older of its run is served again."""

    def __init__(self, engine: Engine, source: Source, syncer: Syncer, door: Door, status: Status) -> None:
        self.best: Target | None = None
        self._engine = engine
        self._source = source
        self._syncer = syncer
        self._door = door
        self._status = status
        self._base: Held | None = None
        self._target: Target | None = None  # what is served, with its manifest
        self._failed: dict[tuple[str, int, str], SyncError] = {}  # steps to a version, over attempts that were lost

    async def join(self) -> None:
        self._base = await self._syncer.join()
        self._serve_base()

    async def rebuild_base(self) -> None:
        await self._syncer.rebuild_base()
        self._serve_base()

    def open(self) -> None:
        """Let everybody in on what is served."""
        self._door.open()
        self._remember()

    def may_open(self) -> bool:
        """Whether what is live is what is said to be served: a version of a run, and none that is left behind."""
        served = self._status.served
        if served is None or served.run is None or not self._is_live(served):
            return False
        return self.best is None or (*served.run.age, served.version) >= self.best.age

    def state_behind(self) -> State:
        """While no version is served, or not the one that should be."""
        if self._status.served is None:
            return "starting"
        return "catching_up" if self._syncer.held is not None else "dirty"

    def check_age(self, run: Run) -> None:
        followed = self.best.run if self.best else None
        if followed and run.age < followed.age:
            raise OlderRunError(f"run {run.run_id!r} is older than run {followed.run_id!r}, which is followed")

    async def to(self, target: Target) -> None:
        """By the cheapest way; when a step of it fails, by the next one that does without that step."""
        self.check_age(target.run)
        while not self._is_past(target):
            path = await self._next_path(target)
            if path:
                await self._walk(path, target.run)
            else:  # the same weights, held under another run or as the base model
                self._record(target.run, target.manifest, Timing())
        self._failed.clear()

    async def _next_path(self, target: Target) -> list[Manifest]:
        """Raises the first error when each way has a step that failed, or the reason why there is no way."""
        failed, paths = self._failed, list[list[Manifest]]()
        reason: SyncError | None = None
        try:
            paths = await self._source.paths(target.run, target.manifest, self._syncer.held)
        except (ChainError, IntegrityError) as error:
            reason = error
        if not paths or (paths[0] and paths[0][0].kind == "anchor"):
            paths = await self._from_base(target) + paths
        for path in paths:
            if not any(_key(step) in failed for step in path):
                return path
        self._failed = {}  # by the next attempt they may be mended
        raise next(iter(failed.values()), reason or ChainError(f"no way leads to version {target.manifest.version}"))

    async def _from_base(self, target: Target) -> list[list[Manifest]]:
        """Ways from the base model, which costs no download: they begin with an anchor without files."""
        if self._base is None or self._base == self._syncer.held:
            return []
        try:
            paths = await self._source.paths(target.run, target.manifest, self._base)
            start = await self._source.manifest(target.run, self._base.version)
        except (ChainError, IntegrityError):
            return []
        base = replace(start, kind="anchor", files=(), base_version=None, base_fingerprint=None)
        return [[base, *path] for path in paths if not path or path[0].kind == "delta"]

    async def _walk(self, path: list[Manifest], run: Run) -> None:
        served = self._status.served
        if self._door.is_open and served and served.run == run and served.version >= path[0].version:
            self._door.shut(f"building version {path[-1].version} anew from version {path[0].version}")
        step = path[0]
        try:
            async with contextlib.aclosing(self._source.fetched(run, path)) as fetched:
                for step in path:
                    manifest, files = await anext(fetched)
                    await self._sync(manifest, files, run, behind=not self._door.is_open or step is not path[-1])
        except (BucketError, EngineError):
            raise
        except SyncError as error:
            LOG.warning("version %s (%s) cannot be used: %s", step.version, step.kind, error)
            if not isinstance(error, LostError):
                self._failed[_key(step)] = error
                return
            if step.kind == "anchor":  # which may be what cannot be placed: the next attempt tries another way
                self._failed[_key(step)] = error
            raise

    def _is_past(self, target: Target) -> bool:
        served = self._status.served
        if served is None or served.run != target.run or not self._is_live(served):
            return False
        return served.version >= target.manifest.version

    def _is_live(self, served: Served) -> bool:
        return self._syncer.held == Held(served.version, served.fingerprint)

    async def _sync(self, manifest: Manifest, files: list[Path], run: Run, behind: bool) -> None:
        self._status.change("staging" if not behind else self.state_behind())
        reprefilled = 0

        def begin() -> None:
            nonlocal reprefilled
            reprefilled = self._engine.in_flight()
            if not behind:
                self._status.change("applying")

        if manifest.kind == "anchor" and not files:
            timing = await self._syncer.rebuild_base(begin)
        else:
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
        self._target = Target(run, manifest)
        if self._door.is_open:
            self._remember()
        LOG.info(sync.log_line())

    def _serve_base(self) -> None:
        assert self._syncer.held is not None
        self._status.served = Served(None, 0, self._syncer.held.fingerprint)
        self._target = None

    def _remember(self) -> None:
        if self._target is not None:
            self.best = self._target


def _key(step: Manifest) -> tuple[str, int, str]:
    return step.run_id, step.version, step.kind
