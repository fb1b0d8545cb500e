"""The bucket's side of following: runs, versions, ways to a version and their files, off the event loop.

Every call has a deadline. Knows nothing of engines; what may be applied to what is for `shared.chain` to say.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from shared.bucket import Bucket
from shared.chain import Held, find_paths
from shared.errors import BucketError, ChainError, IntegrityError
from shared.reader import RunReader, list_runs
from shared.types import Manifest, Run

T = TypeVar("T")


class Source:
    """`open_bucket` is called anew after `forget`. Manifests that were read are kept until then, those of one run at a
    time: a run that was begun anew under the same id is another one.
    """

    def __init__(self, open_bucket: Callable[[], Bucket], run_id: str | None, deadline_s: float) -> None:
        """`run_id` None follows the newest run."""
        self._open_bucket = open_bucket
        self._run_id = run_id
        self._deadline_s = deadline_s
        self._bucket: Bucket | None = None
        self._read: tuple[Run, RunReader] | None = None

    def forget(self) -> None:
        """What was read may be what was wrong."""
        self._bucket = self._read = None

    async def newest(self, followed: Run | None) -> tuple[Run, Manifest] | None:
        """The newest version of the newest run that has one; None while there is nothing to follow.

        Runs older than `followed` are no matter, and neither is a run that cannot be read when one is followed.
        """
        try:
            runs = await self._call(self._runs)
        except IntegrityError:
            if followed is None:
                raise
            runs = [followed]
        for run in reversed(runs):
            if followed is not None and run.age < followed.age:
                break
            try:
                return run, await self._call(lambda run=run: self._reader_of(run).newest())
            except ChainError:
                continue  # it has no version yet
        return None

    async def run(self, run_id: str) -> Run:
        """As the bucket has it now. Raises ChainError when there is none."""
        return await self._call(lambda: RunReader(self._opened(), run_id).run())

    async def manifest(self, run: Run, version: int) -> Manifest:
        """Raises ChainError when there is none."""
        return await self._call(lambda: self._reader_of(run).manifest(version))

    async def paths(self, run: Run, target: Manifest, held: Held | None) -> list[list[Manifest]]:
        """The ways to `target`, cheapest first. Raises ChainError when there is none."""
        return await self._call(lambda: find_paths(target, held, self._reader_of(run)))

    async def fetched(self, run: Run, path: Sequence[Manifest]) -> AsyncGenerator[tuple[Manifest, list[Path]]]:
        """Each version with its checked files, in order; the next one is downloaded while the caller has this one."""
        reader = await self._call(self._reader_of, run)
        ahead = _Fetch(reader, path[0])
        try:
            for number, manifest in enumerate(path):
                current, files = ahead, await self._within(ahead.files())
                if number + 1 < len(path):
                    ahead = _Fetch(reader, path[number + 1])
                try:
                    yield manifest, files
                finally:
                    current.close()
        finally:
            ahead.close()

    def _runs(self) -> list[Run]:
        """Those that may be followed, the newest at the end."""
        if self._run_id is None:
            return list_runs(self._opened())
        with contextlib.suppress(ChainError):  # it may be created later
            return [RunReader(self._opened(), self._run_id).run()]
        return []

    def _opened(self) -> Bucket:
        if self._bucket is None:
            self._bucket = self._open_bucket()
        return self._bucket

    def _reader_of(self, run: Run) -> RunReader:
        if self._read is None or self._read[0] != run:
            self._read = run, RunReader(self._opened(), run.run_id)
        return self._read[1]

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._within(asyncio.to_thread(function, *arguments))

    async def _within(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await call
        except TimeoutError as error:
            raise BucketError(f"the bucket did not answer within {self._deadline_s} s") from error


class _Fetch:
    """A download on a thread, whose folder is gone after `close`, however far it is."""

    def __init__(self, reader: RunReader, manifest: Manifest) -> None:
        self._stack = ExitStack()
        self._thread = asyncio.get_running_loop().run_in_executor(
            None, self._stack.enter_context, reader.fetched(manifest)
        )

    async def files(self) -> list[Path]:
        return await asyncio.shield(self._thread)

    def close(self) -> None:
        self._thread.add_done_callback(self._clean)

    def _clean(self, done: asyncio.Future[list[Path]]) -> None:
        done.exception()  # it was reported to whoever waited, or nobody did
        self._stack.close()
