"""The gate alone, without the routes behind it: keys, sizes, and whose session it will be."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from space_env.gate import Gate
from space_env.messages import MAX_BYTES
from space_env.sessions import Desk

Headers = Iterable[tuple[bytes, bytes]]
KEY = (b"authorization", b"Bearer sesame")


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    read = await receive() if scope["type"] == "http" else {}
    await send({"type": "reached", "path": scope["path"], "body": read.get("body")})


def sent(
    scope_type: str,
    path: str,
    headers: Headers = (),
    key: str | None = "sesame",
    body: Sequence[bytes] = (b"",),
    desk: Desk | None = None,
    address: str = "127.0.0.1",
) -> list[Message]:
    """What goes out for a request that comes in these pieces."""
    messages: list[Message] = []
    pieces = [{"type": "http.request", "body": piece, "more_body": True} for piece in body]
    pieces[-1]["more_body"] = False

    async def receive() -> Message:
        return pieces.pop(0) if scope_type == "http" else {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {"type": scope_type, "path": path, "headers": list(headers), "method": "GET", "client": (address, 1)}
    asyncio.run(Gate(inner, desk or Desk(), key)(scope, receive, send))
    return messages


def reached(messages: list[Message]) -> bool:
    return [message["type"] for message in messages] == ["reached"]


@pytest.mark.parametrize(("scope_type", "path"), [("http", "/status"), ("websocket", "/ws")])
def test_the_key_opens(scope_type: str, path: str) -> None:
    assert reached(sent(scope_type, path, [KEY]))


@pytest.mark.parametrize(
    "given",
    [b"", b"Bearer", b"Bearer ", b"sesame", b"Bearersesame", b"Basic sesame", b"Bearer sesame2", b"Bearer \xff\xfe"],
)
def test_anything_else_is_answered_with_401(given: bytes) -> None:
    assert sent("http", "/status", [(b"authorization", given)])[0]["status"] == 401


@pytest.mark.parametrize("scheme", [b"bearer", b"BEARER", b"Bearer "])
def test_the_scheme_is_read_as_http_has_it(scheme: bytes) -> None:
    assert reached(sent("http", "/status", [(b"authorization", scheme + b" sesame")]))


def test_no_header_is_answered_with_401() -> None:
    assert sent("http", "/reset")[0]["status"] == 401


def test_a_websocket_without_the_key_is_answered_with_401_before_it_opens() -> None:
    start, body = sent("websocket", "/ws")
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert json.loads(body["body"])["error"].startswith("wrong or missing key: send Authorization")


@pytest.mark.parametrize("path", ["/", "/health", "/favicon.ico", "/play", "/play/", "/play/assets/x.js"])
def test_the_health_check_and_the_page_need_no_key(path: str) -> None:
    assert reached(sent("http", path))


@pytest.mark.parametrize("path", ["/health/", "/playground", "//", "/status", "/docs", "/web", "/ws"])
def test_nothing_else_is_open(path: str) -> None:
    assert sent("http", path)[0]["status"] == 401


def test_a_game_on_the_page_needs_no_key_and_is_a_session_of_openenv() -> None:
    (message,) = sent("websocket", "/play/ws")
    assert (message["type"], message["path"]) == ("reached", "/ws")


@pytest.mark.parametrize("path", ["/mcp", "/health", "/play/queue", "/", "/ws/ui"])
def test_a_websocket_for_anything_but_a_game_is_not_opened(path: str) -> None:
    assert sent("websocket", path, [KEY])[0]["status"] == 404


def test_a_refusal_does_not_repeat_the_key() -> None:
    assert b"sesame" not in b"".join(message.get("body", b"") for message in sent("http", "/status"))


def test_start_and_stop_of_the_server_pass() -> None:
    assert reached(sent("lifespan", ""))


def test_a_body_of_the_largest_size_arrives_whole_in_one_piece() -> None:
    half = b"1" * (MAX_BYTES // 2 - 1)
    (message,) = sent("http", "/step", [KEY], body=[b'"' + half, b"", half + b'"'])
    assert message["body"] == b'"' + half + half + b'"'


@pytest.mark.parametrize("body", [b"{", b"NaN", b"\xff", b'"\\ud800"', b'{"a": 1, "a": 2}', b"[" * 300 + b"]" * 300])
def test_a_body_that_is_not_json_in_one_sense_only_is_refused(body: bytes) -> None:
    start, answer = sent("http", "/step", [KEY], body=[body])
    assert start["status"] == 422
    assert json.loads(answer["body"])["error"].startswith("the body is not JSON as it should be: ")


@pytest.mark.parametrize("pieces", [[b"x" * (MAX_BYTES + 1)], [b"x" * 1000] * 100])
def test_a_body_that_is_too_large_is_refused_however_it_comes(pieces: list[bytes]) -> None:
    start, body = sent("http", "/step", [KEY], body=pieces)
    assert (start["status"], json.loads(body["body"])["error"]) == (413, "a request has at most 16384 bytes")


def seats(path: str, address: str, key: str | None, headers: Headers = ()) -> int:
    """How many sessions one visitor gets, of 300 tried for and kept open at once."""
    desk, open_ = Desk(), 0

    async def hold(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal open_
        open_ += 1
        await asyncio.sleep(3600)

    async def try_all() -> None:
        scope: dict[str, Any] = {"type": "websocket", "path": path, "headers": list(headers), "client": (address, 1)}
        tasks = [asyncio.create_task(Gate(hold, desk, key)(dict(scope), connecting, nowhere)) for _ in range(300)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(try_all())
    return open_


def places(addresses: Sequence[str]) -> int:
    """How many of strangers that come one after the other, and stay, are one visitor too many."""
    desk = Desk()

    async def hold(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(3600)

    async def come_all() -> None:
        scope: dict[str, Any] = {"type": "websocket", "path": "/play/ws", "headers": []}
        callers = [{**scope, "client": (address, 1)} for address in addresses]
        tasks = [asyncio.create_task(Gate(hold, desk, None)(caller, connecting, nowhere)) for caller in callers]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(come_all())
    return int(desk.status()["refused"].get("visitor", 0))


@pytest.mark.parametrize(
    ("addresses", "refused"),
    [
        ([f"2001:db8:1:2::{i:x}" for i in range(1, 11)], 6),
        ([f"2001:db8:1:{i:x}::1" for i in range(1, 11)], 0),
        (["8.8.8.8"] * 5 + ["::ffff:8.8.8.8"] * 5, 6),
        ([f"::ffff:8.8.8.{i}" for i in range(10)], 0),
        ([f"8.8.8.{i}" for i in range(10)], 0),
    ],
    ids=["one network", "ten networks", "one address in two forms", "ten in the other form", "ten addresses"],
)
def test_who_counts_as_one_visitor_of_whom_four_may_play(addresses: list[str], refused: int) -> None:
    assert places(addresses) == refused


async def connecting() -> Message:
    return {"type": "websocket.connect"}


async def nowhere(message: Message) -> None:
    """Nobody listens."""


@pytest.mark.parametrize(
    ("path", "address", "key", "headers", "count"),
    [
        ("/ws", "8.8.8.8", "sesame", [KEY], 256),
        ("/ws", "8.8.8.8", None, [], 64),
        ("/ws", "2001:4860:4860::8888", None, [], 64),
        ("/ws", "unknown", None, [], 64),
        ("/ws", "127.0.0.1", None, [], 256),
        ("/ws", "192.168.1.20", None, [], 256),
        ("/ws", "::ffff:192.168.1.20", None, [], 256),
        ("/ws", "::ffff:8.8.8.8", None, [], 64),
        ("/ws", "fe80::1%eth0", None, [], 256),
        ("/play/ws", "8.8.8.8", "sesame", [], 4),
        ("/play/ws", "127.0.0.1", None, [], 4),
    ],
)
def test_how_many_sessions_a_visitor_may_have(
    path: str, address: str, key: str | None, headers: Headers, count: int
) -> None:
    assert seats(path, address, key, headers) == count
