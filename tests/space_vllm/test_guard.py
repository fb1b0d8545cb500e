"""Who is let in where, and what an answer becomes whose weights were lost."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from space_vllm.guard import STATE, Access, Guard
from space_vllm.space import Door
from tests.space_vllm.fakes import KEY, running

OPEN = ["/health", "/", "/monitor", "/monitor/", "/monitor/assets/x.css"]
KEYED = ["/v1/models", "/v1/chat/completions", "/weights/status", "/metrics"]
CLOSED = [
    "/docs",
    "/openapi.json",
    "/invocations",
    "/tokenize",
    "/inference/v1/generate",
    "/pause",
    "/v1",
    "//v1/models",
]


def guarded(door: Door | None) -> FastAPI:
    """An app that answers any path with 'inside'; without a door, the plugin was not loaded."""
    app = FastAPI()
    app.add_api_route("/{path:path}", lambda: "inside", methods=["GET"])
    app.add_middleware(Guard)
    if door is not None:
        app.state[STATE] = Access(KEY, door)
    return app


def get(app: FastAPI, path: str, authorization: str | None = None) -> httpx.Response:
    async def ask() -> httpx.Response:
        headers = [] if authorization is None else [(b"Authorization", authorization.encode())]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://space") as http:
            return await http.get(httpx.URL("http://space", raw_path=path.encode()), headers=headers)

    return asyncio.run(ask())


def opened() -> Door:
    door = Door()
    door.open()
    return door


@pytest.mark.parametrize("path", OPEN)
def test_open_paths_need_no_key(path: str) -> None:
    assert get(guarded(opened()), path).json() == "inside"


@pytest.mark.parametrize("path", KEYED)
def test_the_key_opens_the_api(path: str) -> None:
    assert get(guarded(opened()), path, f"Bearer {KEY}").json() == "inside"


@pytest.mark.parametrize("authorization", [None, "", KEY, f"Bearer {KEY}x", "Bearer ", f"Basic {KEY}", "Bearer \xe9"])
@pytest.mark.parametrize("path", KEYED)
def test_without_the_key_the_api_is_closed(path: str, authorization: str | None) -> None:
    answer = get(guarded(opened()), path, authorization)
    assert answer.status_code == 401
    assert KEY not in answer.text


@pytest.mark.parametrize("path", CLOSED)
def test_everything_else_is_closed_even_with_the_key(path: str) -> None:
    assert get(guarded(opened()), path, f"Bearer {KEY}").status_code == 404


def test_while_no_verified_weights_are_live_only_generation_is_closed() -> None:
    app = guarded(Door(reason="the bucket cannot be reached"))
    answer = get(app, "/v1/models", f"Bearer {KEY}")
    assert answer.status_code == 503
    assert "the bucket cannot be reached" in answer.json()["error"]
    assert get(app, "/weights/status", f"Bearer {KEY}").json() == "inside"


@pytest.mark.parametrize("path", ["/health", "/", "/v1/models", "/docs"])
def test_without_the_plugin_nothing_is_open(path: str) -> None:
    answer = get(guarded(None), path, f"Bearer {KEY}")
    assert answer.status_code == 503
    assert "delta_sync" in answer.json()["error"]


def test_websockets_are_closed() -> None:
    sent: list[Any] = []

    async def connect() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        scope: dict[str, Any] = {"type": "websocket", "path": "/v1/realtime", "headers": [], "app": None}
        await Guard(guarded(opened()))(scope, receive, send)

    asyncio.run(connect())
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_a_stream_is_cut_when_its_weights_are_lost() -> None:
    door = opened()

    async def stream() -> StreamingResponse:
        async def tokens() -> Any:
            yield "before"
            door.shut("the weights were lost")
            door.open()
            yield "after"

        return StreamingResponse(tokens())

    app = FastAPI()
    app.add_api_route("/v1/stream", stream)
    app.add_middleware(Guard)
    app.state[STATE] = Access(KEY, door)
    with pytest.raises(ConnectionAbortedError):
        get(app, "/v1/stream", f"Bearer {KEY}")


def test_the_root_leads_to_the_monitor(tmp_path: Path) -> None:
    async def ask() -> None:
        async with running(tmp_path) as space:
            answer = await space.http.get("/")
            assert (answer.status_code, answer.headers["location"]) == (307, "/monitor/")

    asyncio.run(ask())
