"""The monitor in the Space's own server: open to all, or to who logs in, and of itself without asking over HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import torch
from fastapi import FastAPI

from shared.login import Login
from shared.types import Json
from space_vllm.monitor import NAME, SpaceMonitor
from space_vllm.settings import SettingError, Settings
from tests.space_vllm.fakes import make_settings, publisher

DEADLINE_S = 20.0
REFRESH: Json = {"data": [None] * 5, "fn_index": 0, "session_hash": "abc"}


def played(scenario: Callable[[httpx.AsyncClient, SpaceMonitor], Awaitable[None]], login: Login | None = None) -> None:
    async def play() -> None:
        app, monitor = FastAPI(openapi_url=None), SpaceMonitor()
        monitor.mount(app, login)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://space") as http:
            await scenario(http, monitor)

    asyncio.run(play())


async def verdict(http: httpx.AsyncClient) -> str:
    """As HTML."""
    answer = await http.post("/monitor/gradio_api/run/predict", json=REFRESH)
    return str(answer.json()["data"][1])


def test_before_the_server_has_started_it_says_that_it_reads() -> None:
    async def look(http: httpx.AsyncClient, monitor: SpaceMonitor) -> None:
        assert "<h1>Bucket of this Space is being read.</h1>" in await verdict(http)
        assert (await http.get("/favicon.ico")).headers["location"] == "/monitor/favicon.ico"

    played(look)


def test_it_shows_the_run_and_what_the_space_says_of_itself(tmp_path: Path) -> None:
    with publisher(tmp_path, "r1") as publishing:
        mark = publishing.publish([("w", torch.zeros(4))]).fingerprint

    async def look(http: httpx.AsyncClient, monitor: SpaceMonitor) -> None:
        status = {"run_id": "r1", "version": 0, "fingerprint": mark, "state": "serving"}
        monitor.start(make_settings(tmp_path), lambda: status)
        async with asyncio.timeout(DEADLINE_S):
            while not monitor.look("", None).replicas:
                await asyncio.sleep(0.05)
        assert monitor.look("", None).replicas[NAME].document == status
        assert "<h1>Running, version 0, the replica verified.</h1>" in await verdict(http)

    played(look)


def test_a_bucket_that_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def look(http: httpx.AsyncClient, monitor: SpaceMonitor) -> None:
        monitor.start(make_settings(tmp_path / "file" / "bucket"), dict)
        assert "bucket unreadable" in await verdict(http)

    played(look)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/monitor/config"),
        ("GET", "/monitor/gradio_api/info"),
        ("POST", "/monitor/gradio_api/run/predict"),
    ],
)
def test_with_a_login_no_data_is_answered_without_it(method: str, path: str) -> None:
    async def look(http: httpx.AsyncClient, monitor: SpaceMonitor) -> None:
        answer = await http.request(method, path, json=REFRESH if method == "POST" else None)
        assert answer.status_code == 401
        wrong = await http.post("/monitor/login", data={"username": "me", "password": "wrong"})
        assert wrong.status_code == 400
        assert (await http.request(method, path, json=REFRESH if method == "POST" else None)).status_code == 401
        right = await http.post("/monitor/login", data={"username": "me", "password": "sesame"})
        assert right.status_code == 200
        assert (await http.request(method, path, json=REFRESH if method == "POST" else None)).status_code == 200

    played(look, Login("me", "sesame"))


def test_half_a_login_is_a_mistake_that_is_told() -> None:
    given = {"BUCKET": "user/name", "MODEL": "some/model", "VLLM_API_KEY": "key"}
    assert Settings.from_environment(given).login is None
    assert Settings.from_environment({**given, "MONITOR_USER": "me", "MONITOR_PASSWORD": "sesame"}).login == Login(
        "me", "sesame"
    )
    with pytest.raises(SettingError, match="^MONITOR_PASSWORD is not set, but the other half of the login is"):
        Settings.from_environment({**given, "MONITOR_USER": "me"})
    assert "sesame" not in repr(Login("me", "sesame"))
