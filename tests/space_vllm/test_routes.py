"""Nobody without the key gets anywhere on a running server: all its routes, vLLM's and the Space's, are tried."""

import re

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.space_vllm.fakes import KEY
from tests.space_vllm.live_server import ANSWER_DEADLINE_S, Server, in_float32
from tests.space_vllm.route_list import Listed, listed_in

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

KEYED = ("/v1/models", "/v1/completions", "/metrics", "/weights/status", "/weights/checksums", "/weights/update")
WRONG: dict[str, dict[bytes, bytes]] = {
    "none": {},
    "empty": {b"Authorization": b""},
    "only its scheme": {b"Authorization": b"Bearer"},
    "wrong": {b"Authorization": b"Bearer wrong"},
    "longer": {b"Authorization": f"Bearer {KEY}x".encode()},
    "shorter": {b"Authorization": f"Bearer {KEY[:-1]}".encode()},
    "without its scheme": {b"Authorization": KEY.encode()},
    "of another scheme": {b"Authorization": f"Basic {KEY}".encode()},
    "not ASCII": {b"Authorization": "Bearer schl\u00fcssel".encode("latin-1")},
    "not ASCII, as UTF-8": {b"Authorization": "Bearer \u9375".encode()},
    "in other headers": {b"X-API-Key": KEY.encode(), b"X-HF-Authorization": f"Bearer {KEY}".encode()},
}


def routes_of(server: Server) -> list[Listed]:
    server.is_healthy()
    return listed_in(server.bucket.parent)


def ask(server: Server, method: str, path: str, headers: dict[bytes, bytes] | None = None) -> httpx.Response:
    url = server.url + re.sub(r"\{[^}]*\}", "x", path)
    body = b"{}" if method in ("POST", "PUT", "PATCH") else None
    given = {**(headers or {}), b"Content-Type": b"application/json"}
    return httpx.request(method, url, headers=given, content=body, timeout=ANSWER_DEADLINE_S, trust_env=False)


@in_float32
def test_the_list_of_routes_is_that_of_the_whole_server(server: Server) -> None:
    paths = {route.path for route in routes_of(server)}
    assert {"/weights/update", "/weights/status", "/health", "/"} <= paths
    assert {"/v1/chat/completions", "/invocations", "/tokenize", "/metrics", "/docs", "/openapi.json"} <= paths


@in_float32
def test_without_a_key_only_the_health_and_the_monitor_are_open(server: Server) -> None:
    answers = {
        (method, route.path): ask(server, method, route.path).status_code
        for route in routes_of(server)
        for method in route.methods
    }
    opened = {path for (_, path), status in answers.items() if status not in (401, 404)}
    assert opened == {"/", "/health", "/favicon.ico", "/monitor"}
    assert answers["GET", "/"] == answers["GET", "/favicon.ico"] == answers["GET", "/monitor"] == 307


@in_float32
def test_the_monitor_is_served_and_takes_nothing(server: Server) -> None:
    server.is_healthy()
    page = httpx.get(f"{server.url}/", follow_redirects=True, timeout=ANSWER_DEADLINE_S, trust_env=False)
    assert (page.status_code, str(page.url)) == (200, f"{server.url}/monitor/")
    body = {"data": [None] * 5, "fn_index": 0, "session_hash": "abc"}
    shown = httpx.post(
        f"{server.url}/monitor/gradio_api/run/predict", json=body, timeout=ANSWER_DEADLINE_S, trust_env=False
    )
    assert "<h1>" in shown.json()["data"][1]
    upload = httpx.post(
        f"{server.url}/monitor/gradio_api/upload", files={"files": b"x"}, timeout=ANSWER_DEADLINE_S, trust_env=False
    )
    assert upload.status_code == 404


@in_float32
def test_without_a_key_no_websocket_is_open(server: Server) -> None:
    sockets = [route.path for route in routes_of(server) if not route.methods]
    for path in [*sockets, "/v1/realtime"]:
        with pytest.raises(InvalidStatus, match="HTTP 403"), connect(server.url.replace("http", "ws", 1) + path):
            pass


@in_float32
@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_key_opens_nothing(server: Server, headers: dict[bytes, bytes]) -> None:
    assert {path: ask(server, "GET", path, headers).status_code for path in KEYED} == dict.fromkeys(KEYED, 401)


@in_float32
@pytest.mark.parametrize("name", ["key", "api_key", "token", "access_token", "Authorization", "VLLM_API_KEY"])
def test_a_key_in_the_query_opens_nothing(server: Server, name: str) -> None:
    answers = [ask(server, "GET", f"{path}?{name}={value}") for path in KEYED for value in (KEY, f"Bearer {KEY}")]
    assert {answer.status_code for answer in answers} == {401}


@in_float32
def test_the_key_opens_what_is_served(server: Server) -> None:
    right = {b"Authorization": f"Bearer {KEY}".encode()}
    assert {path: ask(server, "GET", path, right).status_code for path in KEYED[:1] + KEYED[2:5]} == {
        path: 200 for path in KEYED[:1] + KEYED[2:5]
    }
