"""What the Space asks of vLLM's engine client, each call with a deadline, and the worker extension behind it.

Knows the calls, not when they are right: that is the syncer's business.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from shared import errors
from shared.errors import SyncError
from shared.types import Manifest
from space_vllm.outcomes import Audited, Placed, Progress, Verified
from space_vllm.prefix_cache import EngineCore, cached_blocks

T = TypeVar("T")

_FIRST_POLL_S, _SLOWEST_POLL_S, _RECOUNT_POLL_S = 0.01, 0.2, 0.1


class EngineClient(Protocol):
    """The part of vLLM's AsyncLLM that is used here. None of it needs vLLM's dev mode."""

    @property
    def engine_core(self) -> EngineCore: ...

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None: ...

    async def resume_generation(self) -> None: ...

    async def reset_prefix_cache(self, reset_running_requests: bool = ..., reset_connector: bool = ...) -> bool: ...

    async def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()) -> Any: ...

    async def update_weight_version(self, new_version: str) -> None: ...

    async def compute_weight_checksums(self) -> list[dict[str, str]]: ...

    @property
    def errored(self) -> bool: ...

    def get_num_unfinished_requests(self) -> int: ...


class EngineError(SyncError):
    """vLLM did not do what it was asked, whatever the weights."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds. `pause` includes the forward pass that runs, `stage` reading and decoding a whole anchor.

    An engine that answers nothing for `hung`, no less than any call may take, is taken for hung. With the door closed,
    `retry` is the first wait before the next attempt, and `slowest_retry` the longest.
    """

    call: float = 60
    bucket: float = 1800
    stage: float = 900
    pause: float = 120
    apply: float = 300
    recount: float = 900
    hung: float = 900
    retry: float = 1
    slowest_retry: float = 30


class Engine:
    """Raises EngineError when the engine does not answer in time, and the worker's own error when staging failed."""

    def __init__(self, client: EngineClient, deadlines: Deadlines) -> None:
        self._client = client
        self._deadlines = deadlines
        self._silent_since: float | None = None

    async def join(self) -> Progress:
        """The fingerprint of the base model, recounted from its files and from the live model."""
        await self._worker("delta_join")
        return await self._staged()

    async def stage(self, manifest: Manifest, files: Sequence[Path]) -> Progress:
        await self._worker("delta_stage", manifest.to_json().decode(), [str(file) for file in files])
        return await self._staged()

    async def stage_base(self) -> Progress:
        await self._worker("delta_stage_base")
        return await self._staged()

    async def pause(self) -> None:
        """Freezes what runs, to be prefilled anew on the weights that are live after the pause."""
        pause = self._client.pause_generation(mode="keep", clear_cache=True)
        await self._within(self._deadlines.pause, "pausing generation", pause)
        if await self._cached_blocks():
            reset = self._client.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
            await self._within(self._deadlines.call, "resetting the prefix cache", reset)
            if blocks := await self._cached_blocks():
                raise EngineError(f"vLLM's prefix cache still holds {blocks} blocks of the old weights after a reset")

    async def abort(self) -> None:
        """Ends all requests in flight. Generation stays paused."""
        pause = self._client.pause_generation(mode="abort", clear_cache=True)
        await self._within(self._deadlines.pause, "aborting requests", pause)

    async def resume(self) -> None:
        await self._within(self._deadlines.call, "resuming generation", self._client.resume_generation())

    async def apply(self) -> Placed:
        return Placed(**await self._worker("delta_apply", seconds=self._deadlines.apply))

    async def verify(self) -> Verified:
        return Verified(**await self._worker("delta_verify", seconds=self._deadlines.apply))

    async def undo(self) -> Placed:
        return Placed(**await self._worker("delta_undo", seconds=self._deadlines.apply))

    async def lose(self) -> None:
        await self._worker("delta_lose")

    async def recount(self, go_on: Callable[[], bool], anew: bool) -> Sequence[str] | None:
        """The live tensors that are not what was verified; None when `go_on` said no before all were counted.

        What was counted by then is not counted again, unless `anew`.
        """
        deadline = asyncio.get_running_loop().time() + self._deadlines.recount
        while go_on():
            recounted = Audited(**await self._worker("delta_recount", anew))
            anew = False
            if recounted.state == "done":
                return recounted.wrong
            if asyncio.get_running_loop().time() > deadline:
                raise EngineError(f"recounting the live weights took more than {self._deadlines.recount} s")
            await asyncio.sleep(_RECOUNT_POLL_S)
        return None

    async def name_weights(self, name: str) -> None:
        """What vLLM itself reports as the version of its weights."""
        await self._within(self._deadlines.call, "naming the weights", self._client.update_weight_version(name))

    async def checksums(self) -> dict[str, str]:
        """vLLM's own checksum of each live parameter."""
        workers = await self._within(self._deadlines.apply, "checksums", self._client.compute_weight_checksums())
        return {name: digest for worker in workers for name, digest in worker.items()}

    @property
    def is_dead(self) -> bool:
        return self._client.errored

    @property
    def is_hung(self) -> bool:
        return self._silent_since is not None and time.monotonic() - self._silent_since >= self._deadlines.hung

    def in_flight(self) -> int:
        return self._client.get_num_unfinished_requests()

    async def _cached_blocks(self) -> int:
        return await self._within(self._deadlines.call, "counting cached blocks", cached_blocks(self._client))

    async def _staged(self) -> Progress:
        """Poll seldom: each call takes its turn between two forward passes."""
        pause, deadline = _FIRST_POLL_S, asyncio.get_running_loop().time() + self._deadlines.stage
        while (progress := Progress(**await self._worker("delta_poll"))).state == "working":
            if asyncio.get_running_loop().time() > deadline:
                await self._worker("delta_discard")
                raise EngineError(f"staging took more than {self._deadlines.stage} s and was given up")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _SLOWEST_POLL_S)
        if progress.state != "ready":
            await self._worker("delta_discard")
            raise _ERRORS.get(progress.error_kind, EngineError)(progress.error or "nothing is staged")
        return progress

    async def _worker(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        # No deadline is passed on: vLLM would leave a late answer behind, as the answer to the next call.
        call = self._client.collective_rpc(method, args=arguments)
        answers = await self._within(seconds or self._deadlines.call, f"the worker's {method}", call)
        return answers[0]

    async def _within(self, seconds: float, what: str, call: Awaitable[T]) -> T:
        """Raises EngineError when `call` takes longer, or raises anything of vLLM's."""
        asked = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                answer = await call
        except TimeoutError as error:
            self._silent_since = min(asked, self._silent_since or asked)
            raise EngineError(f"{what} took more than {seconds} s") from error
        except Exception as error:  # vLLM passes on whatever one of its processes raised
            self._silent_since = None
            raise EngineError(f"{what} failed: {error!r}") from error
        self._silent_since = None
        return answer


_ERRORS: dict[str, type[SyncError]] = {
    kind.__name__: kind for kind in (SyncError, errors.ChainError, errors.IntegrityError, errors.BucketError)
}
