"""Silence on a WebSocket: who is sent away after a while, and who is not."""

import asyncio
import json
import time

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from shared.wordle import load_words, secret_for
from space_env.sessions import Patience
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
