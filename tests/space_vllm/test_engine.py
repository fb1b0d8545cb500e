"""No call waits for ever."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from space_vllm.engine import Engine, EngineError
from tests.space_vllm.fakes import QUICK, FakeClient, make_weights


class SilentClient(FakeClient):
    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        await asyncio.Event().wait()

    def _worker(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == "poll":
            return {"state": "working"}
        return super()._worker(method, args)


def test_a_call_that_is_not_answered_ends_with_its_name() -> None:
    engine = Engine(SilentClient(make_weights(0)), replace(QUICK, pause=0.01))
    with pytest.raises(EngineError, match="pausing generation took more than 0.01 s"):
        asyncio.run(engine.pause())


def test_staging_that_does_not_end_is_discarded() -> None:
    client = SilentClient(make_weights(0))
    engine = Engine(client, replace(QUICK, stage=0.05))
    with pytest.raises(EngineError, match="staging took more than 0.05 s"):
        asyncio.run(engine.join())
    assert client.calls[-1] == "delta_discard"
