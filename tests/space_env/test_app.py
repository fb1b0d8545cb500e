"""All routes over real sockets: games kept apart, errors that are errors, and nothing told before its time."""

import asyncio
import json
import logging
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from openenv.cli._validation import validate_running_environment
from openenv.core.generic_client import GenericEnvClient
from openenv.validation import Level, Verdict, run_validation
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from shared.wordle import feedback, load_words, render, secret_for
from tests.conftest import ROOT
from tests.space_env.server import bearer, get, has_sessions, post, running, socket_of, status, wait_until

TINY = load_words("tiny")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as address:
        yield address


def others_than(secret: str) -> list[str]:
    return [word for word in TINY.answers if word != secret]


async def exchange(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    """The answer to one message; a refused session's is there although the server has closed it."""
    with suppress(ConnectionClosed):
        await socket.send(json.dumps({"type": kind, **({"data": data} if data else {})}))
    return dict(json.loads(await socket.recv()))


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
        async with connect(socket_of(url), proxy=None) as socket:
            seen = [json.dumps(await exchange(socket, "reset", seed=123456, words="tiny"))]
            for word in (*guesses[:4], "zzzzz", guesses[5]):
                seen.append(json.dumps(await exchange(socket, "state")))
                seen.append(json.dumps(await exchange(socket, "step", word=word)))
            return seen, json.dumps(await exchange(socket, "state"))

    (*before, last), after = asyncio.run(frames())
    shown = "\n".join(before).lower()
    assert len(before) == 12
    assert secret not in shown and "123456" not in shown
    assert secret in last and secret in after


def test_a_step_before_a_reset_or_after_the_end_is_an_error_and_no_new_game(url: str) -> None:
    async def play() -> list[dict[str, Any]]:
        async with connect(socket_of(url), proxy=None) as socket:
            word = secret_for(7, TINY)
            answers = [await exchange(socket, "step", word=word)]
            await exchange(socket, "reset", seed=7, words="tiny")
            answers += [await exchange(socket, "step", word=word) for _ in range(2)]
            return [*answers, await exchange(socket, "state")]

    early, won, late, state = asyncio.run(play())
    assert (early["type"], early["data"]["code"]) == ("error", "EXECUTION_ERROR")
    assert early["data"]["message"].startswith("no game on this connection: reset first")
    assert won["data"]["done"]
    assert (late["type"], late["data"]["message"]) == ("error", "the game is over; reset to play another")
    assert (state["data"]["step_count"], state["data"]["won"]) == (1, True)


@pytest.mark.parametrize(
    "frame",
    [
        *("[1]", "5", "null", '"reset"', "{", "", " ", b'{"type":"state"}', b"\xff\x00"),
        *('{"type":"reset","data":{"words":' + "[" * depth + "]" * depth + "}}" for depth in (250, 900)),
        '{"type":"step","data":{"word":' + '{"a":' * 300 + "1" + "}" * 302,
        '{"type":"reset","more":' + "[" * 300 + "]" * 300 + "}",
    ],
    ids=lambda frame: repr(frame[:24]),
)
def test_a_frame_that_is_no_message_is_an_error_and_keeps_the_game(url: str, frame: str | bytes) -> None:
    async def play() -> tuple[dict[str, Any], dict[str, Any]]:
        async with connect(socket_of(url), proxy=None) as socket:
            await exchange(socket, "reset", seed=7, words="tiny")
            await socket.send(frame)
            refused = json.loads(await socket.recv())
            return refused, await exchange(socket, "step", word=secret_for(7, TINY))

    refused, won = asyncio.run(play())
    assert (refused["type"], refused["data"]["code"]) == ("error", "INVALID_JSON")
    assert won["data"]["observation"]["turn"] == 1


@pytest.mark.parametrize(
    ("kind", "data"),
    [("hint", {}), ("step", {"word": 5}), ("step", {}), ("reset", {"seed": "x"}), ("reset", {"words": "huge"})],
)
def test_a_message_that_makes_no_sense_is_an_error_and_the_session_goes_on(
    url: str, kind: str, data: dict[str, Any]
) -> None:
    async def play() -> tuple[dict[str, Any], dict[str, Any]]:
        async with connect(socket_of(url), proxy=None) as socket:
            return await exchange(socket, kind, **data), await exchange(socket, "reset", seed=7)

    refused, started = asyncio.run(play())
    assert (refused["type"], started["type"]) == ("error", "observation")


REFUSED_RESETS = [
    *({"seed": "x"}, {"words": "huge"}, {"shaping": 3}, {"episode_id": 5}),
    "no object",
]


@pytest.mark.parametrize("data", REFUSED_RESETS, ids=str)
def test_a_refused_reset_starts_no_game_that_would_be_counted_as_played(url: str, data: Any) -> None:
    async def play() -> tuple[list[str], int]:
        async with connect(socket_of(url), proxy=None) as socket:
            await socket.send(json.dumps({"type": "reset", "data": data}))
            answers = [json.loads(await socket.recv()), await exchange(socket, "step", word="above")]
            return [answer["type"] for answer in answers], (await asyncio.to_thread(status, url))["playing"]

    assert asyncio.run(play()) == (["error", "error"], 0)


@pytest.mark.parametrize("data", REFUSED_RESETS, ids=str)
def test_a_refused_reset_leaves_the_game_under_way(url: str, data: Any) -> None:
    async def play() -> tuple[str, int, dict[str, Any]]:
        async with connect(socket_of(url), proxy=None) as socket:
            await exchange(socket, "reset", seed=7, words="tiny")
            await socket.send(json.dumps({"type": "reset", "data": data}))
            refused = json.loads(await socket.recv())
            playing = (await asyncio.to_thread(status, url))["playing"]
            return refused["type"], playing, await exchange(socket, "step", word=secret_for(7, TINY))

    refused, playing, won = asyncio.run(play())
    assert (refused, playing, won["data"]["observation"]["won"]) == ("error", 1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"seed": seed} for seed in (7, -7, 2**70, None, "7", 7.0, True, [7])),
        *({"episode_id": given} for given in ("mine", "", "x" * 256, 5, None)),
        *({"words": "huge"}, {"shaping": {"grey": 1}}, {"self": 1}, {"action": 1, "timeout_s": "x", "unknown": {}}),
    ],
    ids=lambda arguments: str(arguments)[:40],
)
def test_a_reset_over_http_takes_and_refuses_what_one_over_a_websocket_does(
    url: str, arguments: dict[str, Any]
) -> None:
    async def reset() -> dict[str, Any]:
        async with connect(socket_of(url), proxy=None) as socket:
            return await exchange(socket, "reset", **arguments)

    code, over_http = post(f"{url}/reset", json.dumps(arguments).encode())
    over_websocket = asyncio.run(reset())
    if over_websocket["type"] == "error":
        assert (code, over_http) == (409, {"error": over_websocket["data"]["message"]})
    else:
        assert (code, {**over_websocket["data"], "metadata": None}) == (200, over_http)


def test_only_the_socket_that_opened_a_session_has_it(url: str) -> None:
    async def play() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        async with connect(socket_of(url), proxy=None) as first:
            await exchange(first, "reset", seed=7, words="tiny")
            request = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}
            told = await exchange(first, "mcp", **request)
            async with connect(socket_of(url, "/ws?session_id=any"), proxy=None) as second:
                return told, await exchange(second, "state"), await exchange(first, "state")

    told, second, first = asyncio.run(play())
    assert (told["type"], told["data"]["error"]["message"]) == ("mcp", "this environment has no MCP tools")
    assert (first["data"]["words"], second["data"]["words"]) == ("tiny", None)


def test_plain_http_never_continues_or_reveals_a_game(url: str) -> None:
    assert get(f"{url}/state")[1]["secret"] is None
    code, refused = post(f"{url}/step", b'{"action": {"word": "above"}}')
    assert (code, refused["error"].split(": ")[1]) == (409, "games are played over the WebSocket /ws")
    assert post(f"{url}/reset", b'{"seed": 7}')[1]["observation"]["secret"] is None


@pytest.mark.parametrize("path", ["/wordle/splits", "/list_environments", "/wordle/tasks", "/wordle/num_tasks"])
def test_what_this_environment_has_not_is_not_found(url: str, path: str) -> None:
    assert get(f"{url}{path}")[0] == 404
    assert post(f"{url}{path}", b"{}")[0] == 404
    assert not [route for route in get(f"{url}/openapi.json")[1]["paths"] if "{" in route or "environments" in route]


def test_the_health_check_is_answered_without_a_body_too(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{url}/health", method="HEAD"), timeout=20) as answer:
        assert (answer.status, answer.read()) == (200, b"")
    assert get(f"{url}/health") == (200, {"status": "healthy"})


def test_sessions_are_opened_by_websockets_only(url: str) -> None:
    create = b'{"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}'
    code, answer = post(f"{url}/mcp", create)
    assert (code, answer["error"]["message"]) == (200, "this environment has no MCP tools")
    assert status(url)["sessions"] == 0


def test_over_capacity_is_refused_with_a_time_and_a_closed_session_frees_its_seat() -> None:
    async def fill(url: str) -> None:
        async with GenericEnvClient(url) as first, GenericEnvClient(url) as second:
            await first.reset(seed=1)
            await second.reset(seed=1)
            third = GenericEnvClient(url)
            with pytest.raises(RuntimeError, match="2/2 sessions active; try again in 5 s .*CAPACITY_REACHED"):
                await third.reset(seed=1)
            await third.close()
            async with connect(socket_of(url), proxy=None) as fourth:
                refused = json.loads(await fourth.recv())["data"]
                assert (refused["reason"], refused["retry_after_s"], refused["max_sessions"]) == ("capacity", 5, 2)
                await fourth.wait_closed()
                assert fourth.close_code == 1013

    with running(capacity=2) as url:
        for _ in range(2):
            asyncio.run(fill(url))
            wait_until(has_sessions(url, 0))
        assert status(url)["refused"] == {"capacity": 4}


def test_the_status_counts_games_steps_and_latencies() -> None:
    async def play(url: str) -> None:
        async with GenericEnvClient(url) as client:
            for seed, guesses in ((7, [secret_for(7, TINY)]), (8, others_than(secret_for(8, TINY))[:6])):
                await client.reset(seed=seed, words="tiny")
                for word in guesses:
                    await client.step({"word": word})
            await client.reset(seed=9, words="tiny")
            now = await asyncio.to_thread(status, url)
            assert (now["sessions"], now["playing"], now["capacity"]) == (1, 1, 256)

    with running() as url:
        asyncio.run(play(url))
        wait_until(has_sessions(url, 0))
        now = status(url)
    assert (now["episodes"], now["solved"], now["solve_rate"], now["steps"]) == (2, 1, 0.5, 7)
    assert 0 < now["step_ms"]["p50"] <= now["step_ms"]["p90"] <= now["step_ms"]["p99"]
    assert (now["refused"], now["reaped"]) == ({}, {})


def test_with_a_key_only_the_health_check_and_the_page_are_open() -> None:
    async def handshake(url: str, key: str) -> dict[str, Any]:
        async with connect(socket_of(url), proxy=None, additional_headers=bearer(key)) as socket:
            return await exchange(socket, "reset", seed=1)

    with running(api_key="sesame") as url:
        assert get(f"{url}/health")[0] == 200
        for path in ("/status", "/state", "/docs", "/openapi.json", "/nothing"):
            assert get(f"{url}{path}")[0] == 401
        assert get(f"{url}/status", "wrong")[0] == 401
        assert status(url, "sesame")["sessions"] == 0
        with pytest.raises(InvalidStatus, match="401"):
            asyncio.run(handshake(url, "wrong"))
        assert asyncio.run(handshake(url, "sesame"))["type"] == "observation"


def test_strangers_are_told_apart_by_the_address_that_the_proxy_reports() -> None:
    async def open_sessions(url: str, forwarded: str, count: int) -> int:
        """How many of `count` sessions at once are admitted."""
        headers = {"X-Forwarded-For": forwarded}
        async with AsyncExitStack() as stack:
            opening = [connect(socket_of(url), proxy=None, additional_headers=headers) for _ in range(count)]
            sockets = [await stack.enter_async_context(one) for one in opening]
            answers = [await exchange(socket, "state") for socket in sockets]
        return sum(answer["type"] == "state" for answer in answers)

    with running() as url:
        assert asyncio.run(open_sessions(url, "8.8.8.8", 66)) == 64
        wait_until(has_sessions(url, 0))
        assert asyncio.run(open_sessions(url, "127.0.0.1, 8.8.8.8, 10.1.2.3", 66)) == 64, "what a visitor wrote first"


def test_openenv_finds_the_environment_valid(url: str) -> None:
    report = validate_running_environment(url)
    assert report["passed"], report
    static = run_validation(ROOT / "space_env", max_level=Level.STATIC, skip_build=True)
    assert static.verdict == Verdict.PASS


def test_a_refused_upgrade_is_no_error_of_the_server() -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("uvicorn.error")

    async def knock(url: str, path: str) -> None:
        async with connect(socket_of(url, path), proxy=None):
            pytest.fail("it was let in")

    with running(api_key="sesame") as url:
        logger.addHandler(handler)
        for path, code in (("/ws", 401), ("/nothing", 404)):
            with pytest.raises(InvalidStatus, match=str(code)):
                asyncio.run(knock(url, path))
    logger.removeHandler(handler)
    assert records == []
