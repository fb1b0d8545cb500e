"""No call waits for ever."""

import asyncio
from contextlib import suppress
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


def test_an_engine_that_never_answers_is_hung_after_its_time() -> None:
    client = FakeClient(make_weights(0))
    client.held["delta_lose"] = asyncio.Event()
    engine = Engine(client, replace(QUICK, call=0.01, hung=0.05))

    async def ask() -> None:
        for is_hung in (False, True):
            assert engine.is_hung is is_hung
            with pytest.raises(EngineError, match="delta_lose took more than 0.01 s"):
                await engine.lose()
            await asyncio.sleep(0.05)

    asyncio.run(ask())


@pytest.mark.parametrize("broken", [{}, {"delta_lose": RuntimeError("no")}], ids=["answer", "error"])
def test_an_engine_that_answers_at_last_is_not_hung(broken: dict[str, Exception]) -> None:
    client = FakeClient(make_weights(0))
    client.held["delta_lose"] = asyncio.Event()
    engine = Engine(client, replace(QUICK, call=0.01, hung=0))

    async def ask() -> None:
        with pytest.raises(EngineError, match="took more than"):
            await engine.lose()
        assert engine.is_hung
        client.broken = broken
        client.held.clear()
        with suppress(EngineError):
            await engine.lose()
        assert not engine.is_hung

    asyncio.run(ask())
