"""The units reach each other through the proxy of private Spaces, and the app's own key is all that the app sees."""

import asyncio
import contextlib
import runpy
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from shared.bucket import open_bucket
from shared.errors import SyncError
from shared.reader import RunReader
from space_env.client import WordleClient
from space_env.models import WordleAction
from tests.conftest import StartProcess
from tests.private_spaces import HERE, PrivateSpace, private_space, reaching_spaces
from tests.space_env.server import running, status
from tests.trainer_box.fake_space import KEY, FakeSpace, fake_space
from trainer_box.replica import Replica
from trainer_box.rollout_requests import PassingError, post
from trainer_box.tiny_policy import tiny_policy_path

TOKEN = "hf_the_token_of_the_trainer"
ENV_KEY = "a-key-of-the-environment"
MODEL = str(tiny_policy_path())
SECRETS = {"HF_TOKEN": TOKEN, "VLLM_API_KEY": KEY, "ENV_API_KEY": ENV_KEY}
DEADLINE_S = 400.0


@pytest.fixture(autouse=True)
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process has a trainer's secrets, and knows where Spaces are."""
    for name, value in {**SECRETS, **reaching_spaces(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)  # to be put back
    monkeypatch.setattr(ssl, "create_default_context", ssl.create_default_context)
    runpy.run_path(str(HERE))


@pytest.fixture
def app() -> Iterator[FakeSpace]:
    with fake_space(MODEL, key=KEY) as server:
        yield server


@pytest.fixture
def vllm(app: FakeSpace) -> Iterator[PrivateSpace]:
    with private_space("somebody-vllm", app.url, TOKEN) as space:
        yield space


@pytest.fixture
def environment() -> Iterator[PrivateSpace]:
    with running(ENV_KEY) as url, private_space("somebody-env", url, TOKEN) as space:
        yield space


def seen_by(app: FakeSpace) -> dict[str, str]:
    """The headers of the last request that got through, by names in lower case."""
    return {name.lower(): value for name, value in app.headers[-1].items()}


def test_without_the_token_a_private_space_is_not_found(app: FakeSpace, vllm: PrivateSpace) -> None:
    for headers in ({}, {"Authorization": f"Bearer {KEY}"}, {"X-HF-Authorization": "Bearer hf_of_nobody"}):
        answer = httpx.get(f"{vllm.url}/health", headers=headers, trust_env=False)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert (vllm.refused, app.headers) == (3, [])


def test_the_proxy_keeps_the_token_in_its_own_header_and_passes_the_other_on(
    app: FakeSpace, vllm: PrivateSpace
) -> None:
    both = {"X-HF-Authorization": f"Bearer {TOKEN}", "Authorization": f"Bearer {KEY}"}
    assert httpx.get(f"{vllm.url}/v1/models", headers=both, trust_env=False).status_code == 200
    assert seen_by(app)["authorization"] == f"Bearer {KEY}"
    assert "x-hf-authorization" not in seen_by(app)
    httpx.get(f"{vllm.url}/health", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)
    assert seen_by(app)["authorization"] == f"Bearer {TOKEN}"


def test_a_response_that_takes_longer_than_the_proxys_minute_is_cut(app: FakeSpace) -> None:
    def slowly(body: dict[str, Any]) -> tuple[list[int], list[float]]:
        time.sleep(1.0)
        return [7], [-1.0]

    app.complete = slowly
    with private_space("somebody-vllm", app.url, TOKEN, minute_s=0.2) as vllm:
        with pytest.raises(aiohttp.ClientError):
            asyncio.run(ask(vllm.url))
        assert vllm.cut == 1


async def ask(url: str) -> Any:
    trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context())  # aiohttp made its own when it was imported
    async with aiohttp.ClientSession(connector=trusting) as session:
        return await post(session, f"{url}/v1/completions", {"model": MODEL, "prompt": [1]}, 10.0)


def test_rollouts_are_generated_through_the_proxy(app: FakeSpace, vllm: PrivateSpace) -> None:
    assert asyncio.run(ask(vllm.url))["choices"][0]["token_ids"] == [7]
    assert seen_by(app)["authorization"] == f"Bearer {KEY}"


def test_a_rollout_without_the_token_is_asked_again_as_of_a_space_that_is_being_built(
    vllm: PrivateSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PassingError, match="HTTP 404: .*check that it is the address of the vLLM Space"):
        asyncio.run(ask(vllm.url))


def test_the_trainer_finds_the_space_with_its_token_and_is_told_what_to_check_without(
    vllm: PrivateSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Replica(vllm.url).served_models() == [MODEL]
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SyncError, match="HF_TOKEN"):
        Replica(vllm.url).wait_until_healthy(0)


def test_a_game_is_played_through_the_proxy_and_is_not_cut_after_its_minute() -> None:
    headers = {"X-HF-Authorization": f"Bearer {TOKEN}", "Authorization": f"Bearer {ENV_KEY}"}
    with running(ENV_KEY) as url, private_space("somebody-env", url, TOKEN, minute_s=0.2) as space:
        with WordleClient(space.url, headers=headers).sync() as client:
            client.reset(seed=7, words="small")
            time.sleep(0.5)
            assert client.step(WordleAction(word="crane")).observation.text
        assert status(url, ENV_KEY)["steps"] == 1
        assert (space.refused, space.cut) == (0, 0)


def connected(space: PrivateSpace) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", space.port), DEADLINE_S)
    return ssl.create_default_context().wrap_socket(plain, server_hostname=f"{space.name}.hf.space")


def test_what_is_open_when_the_proxy_ends_is_cut(app: FakeSpace) -> None:
    head = f"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nX-HF-Authorization: Bearer {TOKEN}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        with private_space("somebody-vllm", app.url, TOKEN) as space:
            asking, silent = (stack.enter_context(connected(space)) for _ in range(2))
            asking.sendall(head.encode())
            assert asking.recv(1 << 16).startswith(b"HTTP/1.0 200")
        assert silent.recv(1) == b""


def test_a_game_without_the_token_is_refused_before_it_gets_to_the_space(environment: PrivateSpace) -> None:
    with pytest.raises(Exception, match="404"):
        WordleClient(environment.url, headers={"Authorization": f"Bearer {ENV_KEY}"}).sync().connect()
    assert (environment.passed, environment.refused) == (0, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_run_sends_the_token_with_every_request_and_tells_no_secret(
    process: StartProcess, tmp_path: Path, app: FakeSpace, vllm: PrivateSpace, environment: PrivateSpace
) -> None:
    bucket = open_bucket(f"local:{tmp_path / 'bucket'}")
    app.follow(bucket)
    command = [
        *("env", "-C", str(tmp_path), sys.executable, "-m", "trainer_box"),
        *(f"--model={MODEL}", f"--bucket={bucket.name}", "--run-id=r", "--output-dir=out", "--max-steps=2"),
        *(f"--vllm-url={vllm.url}", f"--env-url={environment.url}", "--learning-rate=1e-3", "--token-budget=0"),
        *("--environment=trainer_box.environment:TinyWordle", '--chat-template-kwargs={"enable_thinking": false}'),
        *("--per-device-train-batch-size=8", "--num-generations=4", "--max-inflight-tasks=8"),
        *("--max-completion-length=16", "--weight-sync-timeout=60", "--vllm-server-timeout=60"),
    ]
    run = process(command, env={**SECRETS, **reaching_spaces(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert run.wait(DEADLINE_S) == 0, run.output()
    assert [manifest.version for manifest in RunReader(bucket, "r").manifests()] == [0, 1, 2]
    assert (vllm.refused, environment.refused) == (0, 0)
    assert environment.passed >= 8, "fewer games than rollouts"
    assert "x-hf-authorization" not in {name.lower() for headers in app.headers for name in headers}
    told = [run.output(), *(path.read_text(errors="replace") for path in tmp_path.rglob("*.json*"))]
    assert not [text for text in told for secret in SECRETS.values() if secret in text]
