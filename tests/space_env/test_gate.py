"""The door alone, without a server behind it."""

import asyncio
from collections.abc import Iterable

import pytest
from space_env.auth import RequireKey
from starlette.types import Message, Receive, Scope, Send

Headers = Iterable[tuple[bytes, bytes]]


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "reached"})


def sent(scope_type: str, path: str, headers: Headers = ()) -> list[Message]:
    """What goes out for a request through the door whose key is `sesame`."""
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {"type": scope_type, "path": path, "headers": list(headers), "method": "GET"}
    asyncio.run(RequireKey(inner, "sesame")(scope, receive, send))
    return messages


@pytest.mark.parametrize("scope_type", ["http", "websocket"])
def test_the_key_opens(scope_type: str) -> None:
    assert sent(scope_type, "/ws", [(b"authorization", b"Bearer sesame")]) == [{"type": "reached"}]


@pytest.mark.parametrize(
    "given", [b"", b"Bearer", b"Bearer ", b"sesame", b"bearer sesame", b"Bearer sesame2", b"Bearer \xff\xfe"]
)
def test_anything_else_is_answered_with_401(given: bytes) -> None:
    assert sent("http", "/status", [(b"authorization", given)])[0]["status"] == 401


def test_no_header_is_answered_with_401() -> None:
    assert sent("http", "/reset")[0]["status"] == 401


def test_a_websocket_without_the_key_is_closed_before_it_opens() -> None:
    assert [message["type"] for message in sent("websocket", "/ws")] == ["websocket.close"]


def test_the_health_check_needs_no_key_but_a_websocket_of_that_name_does() -> None:
    assert sent("http", "/health") == [{"type": "reached"}]
    assert sent("websocket", "/health")[0]["type"] == "websocket.close"


def test_a_refusal_does_not_repeat_the_key() -> None:
    assert b"sesame" not in b"".join(message.get("body", b"") for message in sent("http", "/status"))


def test_start_and_stop_of_the_server_pass() -> None:
    assert sent("lifespan", "") == [{"type": "reached"}]
