"""What clients do to the server that they should not: it keeps its seats, and goes on answering everybody else.

Each test has a watch that asks `/status` all the time: an answer that does not come fails it.
"""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from openenv.core.generic_client import GenericEnvClient
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from shared.wordle import load_words, secret_for
from tests.conftest import ROOT, StartProcess
from tests.space_env.bad_clients import frame, receive_frame, reset_connection, upgraded
from tests.space_env.server import has_sessions, running, socket_of, status, wait_until

TINY = load_words("tiny")
RESET = json.dumps({"type": "reset", "data": {"seed": 7, "words": "tiny"}})
STEP = json.dumps({"type": "step", "data": {"word": "above"}})
STATE = json.dumps({"type": "state"})
ECHOED = frame(json.dumps({"type": "reset", "unknown": "x" * 15_000}))
PING_S = 0.4


@contextmanager
def watched(url: str) -> Iterator[None]:
    """Asks for the status until the end; an answer that fails or takes longer than the deadline is raised there."""
    ended, failures = threading.Event(), list[Exception]()

    def watch() -> None:
        while True:
            try:
                status(url)
            except (OSError, AssertionError) as error:
                failures.append(error)
            if failures or ended.wait(0.02):
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not failures, failures


@pytest.fixture
def url() -> Iterator[str]:
    with running(capacity=16, ping_s=PING_S) as address, watched(address):
        yield address


def play_a_game(url: str) -> None:
    async def play() -> None:
        async with GenericEnvClient(url) as client:
            await client.reset(seed=7, words="tiny")
            assert (await client.step({"word": secret_for(7, TINY)})).done

    asyncio.run(play())


def in_a_game(url: str, **options: Any) -> socket.socket:
    raw = upgraded(url, **options)
    raw.sendall(frame(RESET) + frame(STEP))
    assert b'"turn":0' in receive_frame(raw) and b'"turn":1' in receive_frame(raw)
    return raw


def test_300_connections_that_break_off_in_a_game_leave_their_seats(url: str) -> None:
    for _ in range(300):
        wait_until(lambda: status(url)["sessions"] < 16)
        reset_connection(in_a_game(url))
    wait_until(has_sessions(url, 0))
    play_a_game(url)


def test_half_open_sockets_lose_their_seats_and_live_ones_keep_theirs(url: str) -> None:
    async def outlive() -> bool:
        """A session at play that says nothing but answers pings."""
        async with GenericEnvClient(url) as client:
            await client.reset(seed=7, words="tiny")
            silent = [await asyncio.to_thread(in_a_game, url) for _ in range(15)]
            await asyncio.to_thread(wait_until, has_sessions(url, 1))
            for raw in silent:
                raw.close()
            return bool((await client.step({"word": secret_for(7, TINY)})).done)

    assert asyncio.run(outlive())
    assert status(url)["reaped"] == {"unresponsive": 15}


def test_a_client_that_asks_and_never_reads_loses_its_seat(url: str) -> None:
    raw = in_a_game(url, small_window=True)
    raw.settimeout(0.2)
    with suppress(TimeoutError, ConnectionError):
        while True:  # until the answers fill all buffers between here and there
            raw.sendall(ECHOED)
            status(url)  # by then it was read: more of them at once would be a flood
    wait_until(has_sessions(url, 0))
    raw.close()
    assert status(url)["reaped"] == {"unresponsive": 1}
    play_a_game(url)


def test_a_client_that_reads_slowly_holds_up_nobody() -> None:
    with running(capacity=16) as url, watched(url):
        raw = in_a_game(url)
        raw.sendall(frame(STATE) * 10)
        for _ in range(5):
            play_a_game(url)
        answers = [receive_frame(raw) for _ in range(10)]
        raw.close()
    assert all(b'"type":"state"' in answer for answer in answers)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x81\xfe\xff\xff" + bytes(70_000),
        b"\x81\xff" + (2**62).to_bytes(8, "big") + bytes(4),
        frame("x" * 17_000),
        frame(RESET)[:-5],
        b"\xc1\x00",
        b"\x81\x05hello",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)),
        frame('{"type":"reset","data":{"seed":' + "9" * 5000 + "}}"),
        frame('{"a":' * 3000),
        frame('{"type":"step","data":{"word":"\\ud800","\\udfff":1}}'),
        frame("\x00" * 100),
        frame("", opcode=8),
        frame("x" * 200, opcode=9),
    ],
    ids=[
        *("frame of 64 KiB", "frame of 4 EiB", "message over the limit", "half a frame", "reserved bit", "no mask"),
        *(
            "plain HTTP",
            "all bytes",
            "endless number",
            "deep nesting",
            "lone surrogates",
            "zeros",
            "close",
            "a ping",
        ),
    ],
)
def test_garbage_ends_at_most_its_own_session(url: str, garbage: bytes) -> None:
    raw = in_a_game(url)
    with suppress(ConnectionError):
        raw.sendall(garbage)
    play_a_game(url)
    raw.close()
    wait_until(has_sessions(url, 0))


def test_an_oversized_message_is_refused_with_the_code_for_it(url: str) -> None:
    async def send() -> int | None:
        async with connect(socket_of(url), proxy=None) as client:
            with suppress(ConnectionClosed):
                await client.send("x" * 1_000_000)
                await client.recv()
            return client.close_code

    assert asyncio.run(send()) == 1009


def test_a_storm_of_resets_holds_up_nobody(url: str) -> None:
    async def storm() -> list[int]:
        async with connect(socket_of(url), proxy=None) as client:
            turns = []
            for _ in range(1000):
                await client.send(RESET)
                turns.append(json.loads(await client.recv())["data"]["observation"]["turn"])
            await asyncio.to_thread(play_a_game, url)
            return turns

    assert asyncio.run(storm()) == [0] * 1000


HOLDER = """
import asyncio, json, sys
from websockets.asyncio.client import connect

async def play(address, seed):
    socket = await connect(address, proxy=None)
    for kind, data in (("reset", {"seed": seed}), ("step", {"word": "zzzzz"})):
        await socket.send(json.dumps({"type": kind, "data": data}))
        await socket.recv()
    return socket

async def hold(address):
    sockets = await asyncio.gather(*(play(address, seed) for seed in range(100)))
    print("playing", flush=True)
    await asyncio.sleep(3600)

asyncio.run(hold(sys.argv[1]))
"""


@pytest.mark.slow
def test_300_clients_killed_in_their_games_leave_their_seats() -> None:
    with running() as url, watched(url):
        for _ in range(3):
            command = [sys.executable, "-c", HOLDER, socket_of(url)]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as client:
                try:
                    assert client.stdout is not None and client.stdout.readline() == b"playing\n"
                    assert (status(url)["sessions"], status(url)["playing"]) == (100, 100)
                finally:
                    client.kill()
            wait_until(has_sessions(url, 0))
        play_a_game(url)


@pytest.mark.slow
def test_of_1000_connects_at_once_256_play_and_the_others_are_told_when_to_try_again(
    process: StartProcess, free_port: Callable[[], int]
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {"PORT": str(port), "HOST": "127.0.0.1"}
    process([sys.executable, "-m", "space_env.serve"], env=environment, url=f"{url}/health", deadline_s=90)
    with watched(url):
        kinds, retries = asyncio.run(crowd(url, 1000))
        assert (kinds.count("observation"), kinds.count("error")) == (256, 744)
        assert retries == [5] * 744
        wait_until(has_sessions(url, 0))
        assert status(url)["refused"] == {"capacity": 744}
        play_a_game(url)


async def crowd(url: str, count: int) -> tuple[list[str], list[int]]:
    """All connect, those who are admitted start a game, and nobody leaves before all have an answer."""
    all_answered = asyncio.Event()
    answers: list[dict[str, Any]] = []

    async def come() -> None:
        async with connect(socket_of(url), proxy=None, open_timeout=60, compression=None) as client:
            with suppress(ConnectionClosed):
                await client.send(RESET)
            answers.append(json.loads(await client.recv()))
            if len(answers) == count:
                all_answered.set()
            await asyncio.wait_for(all_answered.wait(), 60)

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(come())
    refusals = [answer["data"] for answer in answers if answer["type"] == "error"]
    return [answer["type"] for answer in answers], [refusal["retry_after_s"] for refusal in refusals]
