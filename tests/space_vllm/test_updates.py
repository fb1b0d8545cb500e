"""Which messages are turned away before anything is tried."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.space_vllm.fakes import Running, running

GOOD = {"filename": "run/anchors/step_000000.safetensors", "version": 0, "run_id": "run"}


def play(folder: Path, scenario: Callable[[Running], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with running(folder) as space:
            await scenario(space)
            assert not {"pause", "delta_stage"} & set(space.client.calls)

    asyncio.run(whole())


def test_a_foreign_bucket_is_forbidden(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        answer = await space.http.post("/weights/update", json={**GOOD, "repo_id": "someone/else"})
        assert answer.status_code == 403
        assert "'someone/else'" in answer.json()["error"]

    play(tmp_path, scenario)


def test_no_path_leads_to_a_run_that_does_not_exist(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        answer = await space.http.post("/weights/update", json={**GOOD, "repo_id": space.settings.bucket})
        assert answer.status_code == 409
        assert answer.json()["need"] == "anchor"
        assert answer.json()["served_version"] == 0

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "change",
    [{"version": "0"}, {"version": -1}, {"version": True}, {"run_id": "../up"}, {"filename": None}, {"more": 1}],
    ids=str,
)
def test_a_malformed_message_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    async def scenario(space: Running) -> None:
        message = {**GOOD, "repo_id": space.settings.bucket, **change}
        answer = await space.http.post("/weights/update", content=json.dumps(message))
        assert answer.status_code == 422
        assert next(iter(change)) in answer.json()["error"]

    play(tmp_path, scenario)


@pytest.mark.parametrize("body", [b"", b"no json", b"[]"])
def test_a_body_that_is_no_message_is_malformed(tmp_path: Path, body: bytes) -> None:
    async def scenario(space: Running) -> None:
        assert (await space.http.post("/weights/update", content=body)).status_code == 422

    play(tmp_path, scenario)


@pytest.mark.parametrize("wait", ["soon", "-1", "nan", "inf"])
def test_a_wait_that_is_no_number_is_malformed(tmp_path: Path, wait: str) -> None:
    async def scenario(space: Running) -> None:
        answers = [
            await space.http.post("/weights/update", params={"wait": wait}, json=GOOD),
            await space.http.get("/weights/status", params={"wait": wait}),
        ]
        assert [answer.status_code for answer in answers] == [422, 422]

    play(tmp_path, scenario)


def test_checksums_are_those_of_vllm(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        answer = await space.http.get("/weights/checksums")
        assert answer.json()["norm.weight"] == "sum of norm.weight"

    play(tmp_path, scenario)
