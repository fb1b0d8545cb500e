"""Who is let in where, and which answers are refused although vLLM gave them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from space_vllm.guard import STATE, Access, Guard
from space_vllm.space import Door
from tests.space_vllm.fakes import KEY, running

OPEN = ["/health", "/favicon.ico", "/", "/monitor", "/monitor/", "/monitor/assets/x.css"]
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


def test_the_schemes_name_is_no_matter_of_case() -> None:
    for scheme in ("bearer", "BEARER"):
        assert get(guarded(opened()), "/v1/models", f"{scheme} {KEY}").json() == "inside"


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


ABORTED = [
    b'{"choices":[{"text":"half","finish_reason":"abort"}]}',
    b'{"choices":[{"finish_reason": "abort","text":"half"}]}',
    b'{"choices":[{"finish_reason":"stop"},{"finish_reason" : "abort"}]}',
]
WHOLE = b'{"choices":[{"text":"say \\"finish_reason\\":\\"abort\\"","finish_reason":"stop"}]}'
EVENTS = [b'data: {"text":"half","finish_reason":null}\n\n', b'data: {"text":"","finish_reason":"abort"}\n\n']


class Answering:
    """An app that sends one answer in the given parts; a `Door` among them is shut and opened at that point."""

    def __init__(self, parts: Sequence[bytes | Door], content_type: str = "application/json") -> None:
        self._parts = parts
        self._content_type = content_type
        self.finished = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        length = sum(len(part) for part in self._parts if isinstance(part, bytes))
        headers = [(b"content-type", self._content_type.encode()), (b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in self._parts:
            if isinstance(part, Door):
                part.shut("the weights were lost")
                part.open()
            else:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self.finished = True


async def ask(app: Any, sent: list[Any], door: Door, path: str) -> None:
    """A client with the key that hangs up at once; `sent` takes what it is sent."""

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    outer = FastAPI()
    outer.state[STATE] = Access(KEY, door)
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    await Guard(app)({"type": "http", "path": path, "headers": headers, "app": outer}, receive, send)


def sent_by(app: Any, door: Door | None = None, path: str = "/v1/completions") -> list[Any]:
    """The last item is the error when the connection is cut."""
    sent: list[Any] = []
    try:
        asyncio.run(ask(app, sent, door or opened(), path))
    except ConnectionAbortedError as error:
        sent.append(error)
    return sent


def body_of(sent: list[Any]) -> bytes:
    return b"".join(message["body"] for message in sent[1:])


def is_refused(sent: list[Any], sentence: str) -> bool:
    """A 503 whose headers belong to its own body, which says what happened."""
    headers, body = dict(sent[0]["headers"]), body_of(sent)
    assert (headers[b"retry-after"], headers[b"content-length"]) == (b"1", str(len(body)).encode())
    return sent[0]["status"] == 503 and sentence in json.loads(body)["error"]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("answer", ABORTED)
def test_an_aborted_answer_is_refused_however_its_body_is_split(answer: bytes, size: int) -> None:
    app = Answering([answer[start : start + size] for start in range(0, len(answer), size)])
    assert is_refused(sent_by(app), "vLLM aborted this answer")
    assert app.finished


def test_an_abort_far_into_a_big_body_is_found() -> None:
    app = Answering([b"[" + b"0," * 500_000, ABORTED[0], b",0" * 500_000 + b"]"])
    assert is_refused(sent_by(app), "vLLM aborted this answer")


@pytest.mark.parametrize("parts", [[WHOLE], [WHOLE[:30], WHOLE[30:]], [b""], []])
def test_a_whole_answer_is_sent_as_it_is_even_when_its_text_looks_like_an_abort(parts: list[bytes]) -> None:
    sent = sent_by(Answering(parts))
    assert sent[0]["status"] == 200
    assert dict(sent[0]["headers"])[b"content-length"] == str(len(body_of(sent))).encode()
    assert body_of(sent) == b"".join(parts)


def test_nothing_is_sent_of_an_answer_that_is_given_up_when_the_client_hangs_up() -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        raise RuntimeError((await receive())["type"])

    with pytest.raises(RuntimeError, match="http.disconnect"):
        asyncio.run(ask(app, sent, opened(), "/v1/completions"))
    assert sent == []


def test_an_answer_whose_weights_were_lost_meanwhile_is_refused() -> None:
    door = opened()
    assert is_refused(sent_by(Answering([WHOLE[:30], door, WHOLE[30:]]), door), "the weights were lost")


def test_events_are_sent_one_by_one_and_the_aborted_one_cuts_the_stream() -> None:
    sent = sent_by(Answering(EVENTS, "text/event-stream; charset=utf-8"))
    assert [part["body"] for part in sent[1:-1]] == EVENTS[:1]
    assert isinstance(sent[-1], ConnectionAbortedError)


def test_an_abort_that_is_split_between_two_parts_of_a_stream_cuts_it_too() -> None:
    sent = sent_by(Answering([EVENTS[1][:35], EVENTS[1][35:], b"data: [DONE]\n\n"], "text/event-stream"))
    assert [part["body"] for part in sent[1:-1]] == [EVENTS[1][:35]]
    assert isinstance(sent[-1], ConnectionAbortedError)


def test_a_stream_is_cut_when_its_weights_are_lost() -> None:
    door = opened()
    sent = sent_by(Answering([EVENTS[0], door, EVENTS[0]], "text/event-stream"), door)
    assert [part["body"] for part in sent[1:-1]] == [EVENTS[0]]
    assert isinstance(sent[-1], ConnectionAbortedError)


@pytest.mark.parametrize("path", ["/health", "/weights/status", "/metrics"])
def test_other_routes_are_sent_part_by_part_whatever_they_hold(path: str) -> None:
    sent = sent_by(Answering([ABORTED[0], b"more"]), path=path)
    assert [part["body"] for part in sent[1:]] == [ABORTED[0], b"more", b""]


def test_the_root_leads_to_the_monitor(tmp_path: Path) -> None:
    async def ask() -> None:
        async with running(tmp_path) as space:
            answer = await space.http.get("/")
            assert (answer.status_code, answer.headers["location"]) == (307, "/monitor/")

    asyncio.run(ask())
