"""The server over real sockets: sessions kept apart, the key, capacity, and a start that fails with one sentence."""

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openenv.core.generic_client import GenericEnvClient
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from shared.wordle import feedback, load_words, render, secret_for
from space_env.serve import bind, port_from
from tests.conftest import StartProcess
from tests.space_env.server import running, wait_until

TINY = load_words("tiny")
SERVE = [sys.executable, "-m", "space_env.serve"]
STARTING_S = 90.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as address:
        yield address


def get(url: str, key: str | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def others_than(secret: str) -> list[str]:
    return [word for word in TINY.answers if word != secret]


def test_the_generic_client_plays_a_game(url: str) -> None:
    async def play() -> list[Any]:
        async with GenericEnvClient(url) as client:
            await client.reset(seed=7, words="tiny")
            return [await client.step({"word": word}) for word in (others_than(secret)[0], "zzzzz", secret)]

    secret = secret_for(7, TINY)
    first, invalid, last = asyncio.run(play())
    guess = others_than(secret)[0]
    assert first.observation["text"] == f"{render(guess, feedback(guess, secret))} 5 left"
    assert (invalid.observation["reason"], invalid.done) == ("not in the word list", False)
    assert (last.observation["won"], last.done, last.reward) == (True, True, pytest.approx(0.8))


def test_32_sessions_at_once_play_their_own_games(url: str) -> None:
    async def play(seed: int) -> list[str]:
        async with GenericEnvClient(url) as client:
            await client.reset(seed=seed, words="tiny")
            words = [*others_than(secret_for(seed, TINY))[seed : seed + 3], secret_for(seed, TINY)]
            return [(await client.step({"word": word})).observation["text"] for word in words]

    async def play_all() -> list[list[str]]:
        return await asyncio.gather(*(play(seed) for seed in range(32)))

    for seed, texts in enumerate(asyncio.run(play_all())):
        secret = secret_for(seed, TINY)
        guesses = others_than(secret)[seed : seed + 3]
        shown = [f"{render(g, feedback(g, secret))} {5 - i} left" for i, g in enumerate(guesses)]
        assert texts == [*shown, f"{render(secret, '+++++')} won"]


def test_no_frame_carries_the_secret_or_the_seed_before_the_end(url: str) -> None:
    secret = secret_for(123456, TINY)
    guesses = others_than(secret)

    async def frames() -> tuple[list[str], str]:
        async with connect(url.replace("http", "ws") + "/ws", proxy=None) as socket:
            seen = []
            requests: list[dict[str, Any]] = [{"type": "reset", "data": {"seed": 123456, "words": "tiny"}}]
            requests += [{"type": "step", "data": {"word": word}} for word in [*guesses[:4], "zzzzz"]]
            requests.append({"type": "step", "data": {}})
            for request in requests:
                for sent in (request, {"type": "state"}):
                    await socket.send(json.dumps(sent))
                    seen.append(str(await socket.recv()))
            await socket.send(json.dumps({"type": "step", "data": {"word": guesses[5]}}))
            await socket.recv()
            await socket.send(json.dumps({"type": "state"}))
            return seen, str(await socket.recv())

    before, after = asyncio.run(frames())
    shown = "\n".join(before).lower()
    assert len(before) == 14
    assert secret not in shown and "123456" not in shown
    assert secret in after


def test_a_request_that_makes_no_sense_keeps_the_game(url: str) -> None:
    async def texts() -> list[dict[str, Any]]:
        async with connect(url.replace("http", "ws") + "/ws", proxy=None) as socket:
            answers = []
            reset = json.dumps({"type": "reset", "data": {"seed": 7, "words": "tiny"}})
            word = json.dumps({"type": "step", "data": {"word": secret_for(7, TINY)}})
            for frame in (reset, "{", '{"type":"hint"}', '{"type":"step","data":{"word":5}}', word):
                await socket.send(frame)
                answers.append(json.loads(await socket.recv()))
            return answers

    answers = asyncio.run(texts())
    assert [answer["type"] for answer in answers] == ["observation", "error", "error", "error", "observation"]
    assert answers[-1]["data"]["observation"]["turn"] == 1


def test_plain_http_never_continues_or_reveals_a_game(url: str) -> None:
    assert get(f"{url}/state")[1]["secret"] is None
    body = json.dumps({"action": {"word": "above"}}).encode()
    request = urllib.request.Request(f"{url}/step", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        stepped = json.load(answer)
    assert stepped["done"] and stepped["observation"]["error"].startswith("no game")


def test_over_capacity_is_refused_and_a_closed_session_frees_its_place() -> None:
    async def fill(url: str) -> str:
        async with GenericEnvClient(url) as first, GenericEnvClient(url) as second:
            await first.reset(seed=1)
            await second.reset(seed=1)
            assert await asyncio.to_thread(get, f"{url}/status") == (200, {"active": 2, "max": 2})
            third = GenericEnvClient(url)
            with pytest.raises(RuntimeError, match="2/2 sessions active.*CAPACITY_REACHED") as refused:
                await third.reset(seed=1)
            await third.close()
            return str(refused.value)

    with running(max_sessions=2) as url:
        asyncio.run(fill(url))
        wait_until(lambda: get(f"{url}/status") == (200, {"active": 0, "max": 2}))
        asyncio.run(fill(url))


def test_with_a_key_only_the_health_check_is_open() -> None:
    async def handshake(url: str, key: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        async with connect(url.replace("http", "ws") + "/ws", proxy=None, additional_headers=headers) as socket:
            await socket.send(json.dumps({"type": "reset", "data": {"seed": 1}}))
            return dict(json.loads(await socket.recv()))

    with running(api_key="sesame") as url:
        assert get(f"{url}/health")[0] == 200
        for path in ("/status", "/state", "/docs", "/openapi.json", "/nothing"):
            assert get(f"{url}{path}")[0] == 401
        assert get(f"{url}/status", "wrong")[0] == 401
        assert get(f"{url}/status", "sesame") == (200, {"active": 0, "max": 256})
        with pytest.raises(InvalidStatus, match="403"):
            asyncio.run(handshake(url, "wrong"))
        assert asyncio.run(handshake(url, "sesame"))["type"] == "observation"


@pytest.mark.parametrize("text", ["", "http", "0", "65536", "-1", "7860 ", "7_860"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PORT is .*; set it to a number from 1 to 65535"):
        port_from({"PORT": text})


def test_the_port_is_that_of_spaces_unless_set() -> None:
    assert (port_from({}), port_from({"PORT": "80"})) == (7860, 80)


def test_a_port_in_use_is_named_in_one_sentence() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on port {port} of 127.0.0.1: it is already in use"):
            bind("127.0.0.1", port)


@pytest.mark.slow
def test_the_command_serves_with_its_key_and_never_prints_it(
    process: StartProcess, free_port: Callable[[], int]
) -> None:
    port = free_port()
    env = {"PORT": str(port), "HOST": "127.0.0.1", "ENV_API_KEY": "sesame-opens"}
    base = f"http://127.0.0.1:{port}"
    server = process(SERVE, env=env, url=f"{base}/health", deadline_s=STARTING_S)
    assert get(f"{base}/status")[0] == 401
    assert get(f"{base}/status", "sesame-opens") == (200, {"active": 0, "max": 256})
    server.stop()
    assert server.output() == f"space_env: listening on 127.0.0.1:{port}, at most 256 sessions\n"


@pytest.mark.slow
def test_the_command_ends_with_one_sentence_when_its_port_is_taken(process: StartProcess) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        command = process(SERVE, env={"PORT": str(port), "HOST": "127.0.0.1"})
        assert command.wait(STARTING_S) == 1
    assert command.output().splitlines() == [
        f"space_env: cannot listen on port {port} of 127.0.0.1: it is already in use; "
        "stop the program that uses it, or set PORT and HOST"
    ]
