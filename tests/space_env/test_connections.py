"""Connections that ask for too much at once, or for nothing: who is closed, who is not, and what is told of it."""

import asyncio
import json
import socket
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState
from websockets.asyncio.client import ClientConnection, connect

from space_env.connections import MAX_FRAMES, GameConnection
from tests.space_env.bad_clients import DEADLINE_S, exactly, frame, receive_frame, upgraded
from tests.space_env.server import get, has_sessions, running, socket_of, status, wait_until

RESET = json.dumps({"type": "reset", "data": {"seed": 7}})
STATE = json.dumps({"type": "state"})


def connected(url: str, data: bytes) -> socket.socket:
    host, _, port = urlsplit(url).netloc.partition(":")
    raw = socket.create_connection((host, int(port)), DEADLINE_S)
    raw.sendall(data)
    return raw


def until_closed(raw: socket.socket) -> bytes:
    """What still comes before the server closes the connection; fails after the deadline."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := raw.recv(65536):
            data += piece
    return data


async def asked(client: ClientConnection, message: str) -> str:
    await client.send(message)
    return str(json.loads(await client.recv())["type"])


@pytest.mark.parametrize(
    "flood",
    [frame(STATE) * 500, frame("[") * 500, frame("", opcode=9) * 2000, frame("", opcode=10) * 2000],
    ids=["messages", "garbage", "pings", "pongs"],
)
def test_who_sends_many_frames_without_waiting_is_sent_away_and_others_play_on(flood: bytes) -> None:
    async def play(url: str) -> None:
        async with connect(socket_of(url), proxy=None) as other:
            assert await asked(other, RESET) == "observation"
            raw = upgraded(url)
            with suppress(ConnectionError):
                raw.sendall(flood)
            assert b"send one message, and the next" in await asyncio.to_thread(until_closed, raw)
            raw.close()
            assert await asked(other, STATE) == "state"
            await asyncio.to_thread(wait_until, has_sessions(url, 1))

    with running() as url:
        asyncio.run(play(url))
        assert status(url)["reaped"] == {"flooding": 1}


def test_a_few_frames_at_once_are_all_answered() -> None:
    with running() as url:
        raw = upgraded(url)
        raw.sendall(frame(STATE) * (MAX_FRAMES - 1) + frame("", opcode=9))
        assert exactly(raw, 2) == b"\x8a\x00"
        assert all(b'"type":"state"' in receive_frame(raw) for _ in range(MAX_FRAMES - 1))
        raw.close()
        wait_until(has_sessions(url, 0))
        assert status(url)["reaped"] == {}


def test_the_largest_message_is_one_frame_however_many_reads_it_takes() -> None:
    with running() as url:
        raw = upgraded(url)
        message = frame(STATE + " " * 16_000)
        for start in range(0, len(message), 100):
            raw.sendall(message[start : start + 100])
        assert b'"type":"state"' in receive_frame(raw)
        raw.close()


def test_a_message_carries_the_time_at_which_it_was_read() -> None:
    async def queued() -> tuple[float, float, float]:
        connection = GameConnection(uvicorn.Config(FastAPI(), log_config=None), ServerState(), {})
        before = time.monotonic()
        connection.queue.put_nowait({"type": "websocket.receive", "text": "{}"})
        after = time.monotonic()
        await asyncio.sleep(0.01)
        return before, (await connection.queue.get())["arrived"], after

    before, arrived, after = asyncio.run(queued())
    assert before <= arrived <= after


@pytest.mark.parametrize(
    ("error", "cause"), [(TimeoutError(110, "timed out"), "unresponsive"), (ConnectionResetError(104, "reset"), None)]
)
def test_only_a_connection_that_the_kernel_gave_up_is_told_as_unresponsive(error: OSError, cause: str | None) -> None:
    async def lost() -> str | None:
        connection = GameConnection(uvicorn.Config(FastAPI(), log_config=None), ServerState(), {})
        connection.connections.add(connection)
        connection.connection_lost(error)
        message = await connection.queue.get()
        assert message["type"] == "websocket.disconnect"
        return str(message["cause"]) if "cause" in message else None

    assert asyncio.run(lost()) == cause


HEAD = b"POST /reset HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /ws HTTP/1.1\r\nHost: x\r\n",
        HEAD + b'Content-Length: 900\r\n\r\n{"seed":',
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HT",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n\r\n",
    ],
    ids=["nothing", "half a head", "half a body", "half a chunk", "no more", "half a second", "an empty line"],
)
def test_a_connection_on_which_no_whole_request_comes_is_closed(beginning: bytes) -> None:
    with running(request_s=1) as url:
        raw = connected(url, beginning)
        answers = until_closed(raw)
        raw.close()
    assert answers.count(b"HTTP/1.1 200 OK") == beginning.count(b"\r\n\r\n") * beginning.count(b"GET /health HTTP/1.1")


def test_an_empty_line_after_an_answer_does_not_keep_a_connection() -> None:
    with running(request_s=1) as url:
        raw = connected(url, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.1 200")
        raw.sendall(b"\r\n")
        until_closed(raw)
        raw.close()


def test_a_session_outlives_the_time_for_a_request() -> None:
    with running(request_s=1) as url:
        session = upgraded(url)
        later = connected(url, b"")
        until_closed(later)
        later.close()
        session.sendall(frame(STATE))
        assert b'"type":"state"' in receive_frame(session)
        session.close()


def test_requests_one_after_the_other_on_a_connection_are_answered() -> None:
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with running(request_s=1) as url:
        raw = connected(url, request * 5 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert until_closed(raw).count(b"200 OK") == 6
        raw.close()
        assert get(f"{url}/health")[0] == 200
