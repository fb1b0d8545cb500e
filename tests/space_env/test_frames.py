"""One WebSocket: who is sent away after a silence and who is not, whose turn it is, and what is counted."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from shared.wordle import load_words, secret_for
from space_env.frames import Wire
from space_env.models import WordleObservation
from space_env.sessions import TRUSTED, Caller, Desk, Patience
from tests.space_env.server import has_sessions, running, socket_of, status, wait_until

SECRET = secret_for(7, load_words("tiny"))
RESET = json.dumps({"type": "reset", "data": {"seed": 7, "words": "tiny"}})
WIN = json.dumps({"type": "step", "data": {"word": SECRET}})
SHORT_S, LONG_S = 0.3, 3600.0


async def silence_after(url: str, *frames: str) -> tuple[int | None, str]:
    """How the server closes a session that says nothing after these frames."""
    async with connect(socket_of(url), proxy=None) as socket:
        for frame in frames:
            await socket.send(frame)
            await socket.recv()
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 20)
        return socket.close_code, str(socket.close_reason)


@pytest.mark.parametrize("frames", [[], [RESET, WIN]], ids=["before a game", "after a game"])
def test_a_session_without_a_game_gives_its_seat_back(frames: list[str]) -> None:
    with running(patience=Patience(idle_s=SHORT_S, abandoned_s=LONG_S)) as url:
        assert asyncio.run(silence_after(url, *frames)) == (1001, "no message for 0.3 s; connect again to play")
        wait_until(has_sessions(url, 0))
        assert status(url)["reaped"] == {"idle": 1}


def test_a_game_at_play_outlives_the_time_of_idle_sessions() -> None:
    async def play(url: str) -> bool:
        async with connect(socket_of(url), proxy=None) as socket:
            await socket.send(RESET)
            await socket.recv()
            end = time.monotonic() + 4 * SHORT_S
            while time.monotonic() < end:
                await asyncio.sleep(0.05)
            await socket.send(WIN)
            return bool(json.loads(await socket.recv())["data"]["done"])

    with running(patience=Patience(idle_s=SHORT_S, abandoned_s=LONG_S)) as url:
        assert asyncio.run(play(url))
        assert status(url)["reaped"] == {}


def test_a_game_that_nobody_goes_on_with_ends_in_the_end() -> None:
    with running(patience=Patience(idle_s=LONG_S, abandoned_s=SHORT_S)) as url:
        assert asyncio.run(silence_after(url, RESET))[0] == 1001
        wait_until(has_sessions(url, 0))
        assert (status(url)["reaped"], status(url)["playing"]) == ({"abandoned": 1}, 0)


def test_garbage_is_no_silence_but_does_not_make_a_game() -> None:
    async def babble(url: str) -> None:
        async with connect(socket_of(url), proxy=None) as socket:
            for _ in range(8):
                await socket.send("[]")
                assert json.loads(await socket.recv())["type"] == "error"
                await asyncio.sleep(SHORT_S / 4)
            assert (await asyncio.to_thread(status, url))["playing"] == 0

    with running(patience=Patience(idle_s=SHORT_S, abandoned_s=LONG_S)) as url:
        asyncio.run(babble(url))


class Line:
    """A connection on which these messages wait, and which may be gone when it is answered."""

    def __init__(self, messages: Iterator[Message], gone: bool = False) -> None:
        self._messages = messages
        self._gone = gone
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> Message:
        return next(self._messages)

    async def send(self, message: Message) -> None:
        if self._gone:
            raise ConnectionResetError
        self.sent.append(json.loads(message["text"]))


def endless(text: str) -> Iterator[Message]:
    while True:
        yield {"type": "websocket.receive", "text": text}


def until_disconnect(desk: Desk, line: Line) -> Message:
    async def receive() -> Message:
        with desk.seat(Caller("10.0.0.1", TRUSTED)) as session:
            return await Wire(desk, session, line.receive, line.send).receive()

    return asyncio.run(receive())


@pytest.mark.parametrize("text", [json.dumps({"type": "state"}), "garbage"])
def test_between_two_messages_of_a_session_all_others_have_their_turn(text: str) -> None:
    """Also when the messages are there already, and no wait for them gives the loop away."""
    desk, turns = Desk(), {"flooding": 0, "other": 0}

    async def flood() -> None:
        def counted() -> Iterator[Message]:
            for message in endless(text):
                turns["flooding"] += 1
                yield message

        line = Line(counted())
        with desk.seat(Caller("10.0.0.1", TRUSTED)) as session:
            wire = Wire(desk, session, line.receive, line.send)
            while turns["flooding"] < 1000:
                await wire.receive()

    async def play() -> None:
        flooding = asyncio.create_task(flood())
        while turns["other"] < 50:
            turns["other"] += 1
            await asyncio.sleep(0)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)

    asyncio.run(asyncio.wait_for(play(), 20))
    assert turns["flooding"] <= turns["other"]


def test_the_latency_of_a_step_begins_when_its_message_arrived() -> None:
    desk = Desk()
    arrived = time.monotonic() - 5
    line = Line(iter([{"type": "websocket.receive", "text": WIN, "arrived": arrived}]))

    async def answer() -> None:
        with desk.seat(Caller("10.0.0.1", TRUSTED)) as session:
            wire = Wire(desk, session, line.receive, line.send)
            await wire.receive()
            desk.report(WordleObservation(turn=1))
            await wire.send({"type": "websocket.send", "text": "{}"})

    asyncio.run(answer())
    assert desk.status()["step_ms"]["p50"] >= 5000


def test_an_answer_to_a_client_that_is_gone_is_dropped_and_the_next_message_is_its_end() -> None:
    gone = {"type": "websocket.disconnect", "code": 1006}
    line = Line(iter([{"type": "websocket.receive", "text": "garbage"}, gone]), gone=True)
    assert until_disconnect(Desk(), line) == gone


def test_a_session_that_the_connection_ended_is_counted_by_its_cause() -> None:
    desk = Desk()
    for cause in ({"cause": "unresponsive"}, {"cause": "unresponsive"}, {}):
        until_disconnect(desk, Line(iter([{"type": "websocket.disconnect", "code": 1011, **cause}])))
    assert desk.status()["reaped"] == {"unresponsive": 2}


def test_a_message_over_the_limit_is_an_error_under_any_server() -> None:
    too_large = json.dumps({"type": "reset", "x": "x" * 17_000})
    line = Line(iter([{"type": "websocket.receive", "text": too_large}, {"type": "websocket.disconnect"}]))
    until_disconnect(Desk(), line)
    (answer,) = line.sent
    assert answer["data"]["code"] == "INVALID_JSON"
    assert answer["data"]["message"].endswith("it has 17026 bytes, and at most 16384 are read")
