"""What the Space's routes make of their parameters."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from shared.types import LARGEST_VERSION
from space_vllm.endpoint import end_when_hung
from space_vllm.engine import Engine, EngineError
from tests.space_vllm.fakes import QUICK, FakeClient, make_weights, running


def status(folder: Path, parameters: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with running(folder) as space:
            return await space.http.get(f"/weights/status?{parameters}")

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "parameter",
    [
        *(f"version={text}" for text in ("x", "1.5", "-1", str(LARGEST_VERSION + 1), "1" + "0" * 400, "9" * 5000)),
        *(f"wait={text}" for text in ("x", "-1", "nan", "inf", "1e400", "1e10")),
    ],
)
def test_a_number_that_no_version_or_wait_can_have_is_refused_with_a_sentence(tmp_path: Path, parameter: str) -> None:
    answer = status(tmp_path, parameter)
    name = parameter.partition("=")[0]
    expected = f"the parameter {name!r} should be a number from 0 to {LARGEST_VERSION}"
    assert (answer.status_code, answer.json()) == (422, {"error": expected})


@pytest.mark.parametrize("parameters", ["", "version=0&wait=1000", f"version={LARGEST_VERSION}", "wait=0.5&version=0"])
def test_other_numbers_are_answered(tmp_path: Path, parameters: str) -> None:
    answer = status(tmp_path, parameters)
    assert (answer.status_code, answer.json()["version"]) == (200, 0)


@pytest.mark.parametrize("hung_s", [0.0, 60.0])
def test_a_server_ends_when_its_engine_is_hung(hung_s: float) -> None:
    client, told = FakeClient(make_weights(0)), list[int]()
    client.held["delta_lose"] = asyncio.Event()
    engine = Engine(client, replace(QUICK, call=0.01, hung=hung_s))

    async def watch() -> None:
        watching = asyncio.create_task(end_when_hung(engine, 0.01))
        await asyncio.sleep(0.05)
        assert not told
        with pytest.raises(EngineError):
            await engine.lose()
        await asyncio.wait([watching], timeout=10 if hung_s == 0 else 0.1)

    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        asyncio.run(watch())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == ([signal.SIGTERM] if hung_s == 0 else [])
