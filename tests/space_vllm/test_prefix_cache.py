"""vLLM's own scheduler and blocks, without a model: what is counted before and after its cache is cleared."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from space_vllm.prefix_cache import cached_blocks, count_blocks, install

pytestmark = pytest.mark.slow  # imports vLLM

BLOCK = 16


@pytest.fixture
def scheduler(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """With 64 blocks of 16 tokens for one layer."""
    monkeypatch.setenv("VLLM_PLUGINS", "")  # none are to change this process
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    init_none_hash(get_hash_fn_by_name("sha256"))
    config = EngineArgs(model=str(model_folder), block_size=BLOCK, max_model_len=1024).create_engine_config()
    config.cache_config.num_gpu_blocks = 64
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
    blocks = KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], spec)])
    manager = StructuredOutputManager(config)
    return Scheduler(config, blocks, manager, block_size=BLOCK, hash_block_size=BLOCK)


def add(scheduler: Any, name: str, tokens: int) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    hasher = get_request_block_hasher(BLOCK, get_hash_fn_by_name("sha256"))
    parameters = SamplingParams(max_tokens=8)
    parameters.update_from_generation_config({}, eos_token_id=1)
    request = Request(name, list(range(tokens)), parameters, None, block_hasher=hasher)
    scheduler.add_request(request)
    return request


def test_blocks_of_running_requests_are_counted_and_a_forced_clear_leaves_none(scheduler: Any) -> None:
    assert count_blocks(scheduler) == 0
    add(scheduler, "short", BLOCK // 2)
    scheduler.schedule()
    assert count_blocks(scheduler) == 1
    add(scheduler, "long", 3 * BLOCK + 1)
    scheduler.schedule()
    assert count_blocks(scheduler) == 1 + 4 + 3  # held by either, and the long one's full blocks can be found too
    assert not scheduler.reset_prefix_cache()
    assert count_blocks(scheduler) == 1 + 4 + 3
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert count_blocks(scheduler) == 0


def test_blocks_that_a_finished_request_leaves_in_the_cache_are_counted_until_it_is_cleared(scheduler: Any) -> None:
    from vllm.v1.request import RequestStatus

    add(scheduler, "one", 3 * BLOCK + 1)
    scheduler.schedule()
    scheduler.finish_requests("one", RequestStatus.FINISHED_ABORTED)
    assert count_blocks(scheduler) == 3
    assert scheduler.reset_prefix_cache()
    assert count_blocks(scheduler) == 0


def test_an_engine_whose_blocks_cannot_be_counted_says_so(scheduler: Any) -> None:
    with pytest.raises(TypeError, match="^the blocks of a object cannot be counted; leave out --scheduler-cls"):
        count_blocks(object())
    scheduler.kv_cache_manager.coordinator.single_type_managers = ()
    with pytest.raises(TypeError, match="^this model has no blocks to count"):
        count_blocks(scheduler)


def test_the_engine_core_has_the_method_that_the_client_calls(scheduler: Any) -> None:
    from vllm.v1.engine.core import EngineCoreProc

    class Client:
        """Calls a method of the engine by its name, as vLLM's client does from another process."""

        def __init__(self) -> None:
            self.engine_core = self
            self.engine = EngineCoreProc.__new__(EngineCoreProc)
            self.engine.scheduler = scheduler

        async def call_utility_async(self, method: str, *args: Any) -> Any:
            return getattr(self.engine, method)(*args)

    install()
    install()
    add(scheduler, "one", BLOCK)
    scheduler.schedule()
    assert asyncio.run(cached_blocks(Client())) == count_blocks(scheduler) == 2
