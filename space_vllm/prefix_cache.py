"""How much of vLLM's KV cache could still be used, which vLLM itself does not tell: asked of the engine's scheduler.

`install` runs in the engine's process, `cached_blocks` beside the engine's client. Knows nothing of weights or pauses.
"""

from typing import Any, Protocol

_METHOD = "delta_cached_blocks"


class EngineCore(Protocol):
    """The part of vLLM's AsyncMPClient that is used here: it calls methods of the engine in its process."""

    async def call_utility_async(self, method: str, *args: Any) -> Any: ...


class CacheClient(Protocol):
    """The part of vLLM's AsyncLLM that is used here."""

    @property
    def engine_core(self) -> EngineCore: ...


async def cached_blocks(client: CacheClient) -> int:
    """How many blocks of keys and values a request has or could come upon; 0 in a pause after a clear.

    Raises what vLLM raises, with the engine's sentence, when the engine has no blocks that can be counted.
    """
    count: int = await client.engine_core.call_utility_async(_METHOD)
    return count


def install() -> None:
    """Give vLLM's engine the method that `cached_blocks` calls. May run several times in a process."""
    from vllm.v1.engine.core import EngineCore as VllmEngineCore

    setattr(VllmEngineCore, _METHOD, _count)


def count_blocks(scheduler: Any) -> int:
    """Blocks that are held by requests, plus those that are found by their content; one that is both counts twice.

    Raises TypeError when the scheduler has no blocks.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    if not isinstance(scheduler, Scheduler):
        raise TypeError(f"the blocks of a {type(scheduler).__name__} cannot be counted; leave out --scheduler-cls")
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    pools = dict.fromkeys(manager.block_pool for manager in managers)
    if not pools:
        raise TypeError("this model has no blocks to count; serve one that keeps keys and values")
    return sum(_held(pool) + len(pool.cached_block_hash_to_block) for pool in pools)


def _count(engine: Any) -> int:
    return count_blocks(engine.scheduler)


def _held(pool: Any) -> int:
    """The null block, which holds nothing, is never free."""
    held: int = pool.num_gpu_blocks - pool.get_num_free_blocks() - 1
    return held
