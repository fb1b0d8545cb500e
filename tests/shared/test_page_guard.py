"""What a visitor can reach of the Gradio app, over every route that the pinned Gradio has."""

import asyncio
import re

import gradio as gr
import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Mount

from shared.monitor.app import PATH, build, mount
from shared.monitor.snapshot import Snapshot

REFUSAL = "there is no such page here\n"


def snapshot(run_id: str = "", version: int | None = None) -> Snapshot:
    return Snapshot("local:/b", number=1)


@pytest.fixture(scope="module")
def app() -> FastAPI:
    async def make() -> FastAPI:  # Gradio takes the running loop, or opens one that nobody closes
        app = FastAPI(openapi_url=None)
        mount(app, build(snapshot))
        return app

    return asyncio.run(make())


def ask(
    app: FastAPI, method: str, path: str, body: dict[str, object] | None = None, content: bytes | None = None
) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://monitor") as client:
            return await client.request(
                method, PATH + path, json=body, content=content, headers={"Content-Type": "application/json"}
            )

    return asyncio.run(send())


def gradio_routes() -> set[tuple[str, str]]:
    """(method, path) of every route of an unguarded app, with x in the place of each parameter."""

    async def make() -> FastAPI:
        app: FastAPI = gr.mount_gradio_app(FastAPI(), build(snapshot), path=PATH, ssr_mode=False)
        return app

    mounted = asyncio.run(make()).router.routes[-1]
    assert isinstance(mounted, Mount) and isinstance(mounted.app, FastAPI)
    routes = [route for route in mounted.app.routes if isinstance(route, APIRoute)]
    return {(method, re.sub(r"{[^}]*}", "x", route.path)) for route in routes for method in route.methods}


def test_every_route_that_changes_something_is_closed(app: FastAPI) -> None:
    changing = {(method, path) for method, path in gradio_routes() if method not in ("GET", "HEAD")}
    assert ("POST", "/gradio_api/upload") in changing
    assert [route for route in sorted(changing) if ask(app, *route).text != REFUSAL] == []


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b"x=1", b"{", b'{"data": []}', b'{"fn_index": 0}', b'{"session_hash": "abc"}'),
        *(
            b'{"data": [], "session_hash": "abc", "fn_index": %s}' % index
            for index in (b"1", b"99", b"-1", b'"0"', b"null", b"0.0")
        ),
        *(
            b'{"data": [], "session_hash": "abc", "fn_index": %s}' % index
            for index in (b"true", b"false", b"1e300", b"[0]")
        ),
        *(
            b'{"data": [], "session_hash": %s, "fn_index": 0}' % name
            for name in (b"5", b'""', b'"a/b"', b'"%s"' % (b"a" * 65))
        ),
        *(b'{"data": [], "session_hash": "abc", "api_name": "x"}', b"[" * 3000, b'{"a": "%s"}' % (b"a" * 17_000)),
    ],
    ids=lambda body: body[:60].decode(),
)
def test_what_is_no_refresh_is_refused_before_gradio_has_it(
    app: FastAPI, capfd: pytest.CaptureFixture[str], body: bytes
) -> None:
    answer = ask(app, "POST", "/gradio_api/run/predict", content=body)
    assert (answer.status_code, len(answer.text.splitlines())) == (422, 1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "more",
    [
        *({"data": []}, {"data": [1, 2, 3]}, {"data": {"a": 1}}, {"data": [{"path": "/etc/hostname"}]}),
        *({"event_id": "x"}, {"batched": True}, {"simple_format": True}, {"event_data": 5}, {"request": {"a": 1}}),
        *({"api_name": "x"}, {"trigger_id": "x"}, {"oauth_token": "x"}, {}),
    ],
    ids=str,
)
def test_a_refresh_is_the_same_whatever_else_comes_with_it(app: FastAPI, more: dict[str, object]) -> None:
    plain: dict[str, object] = {"data": [None], "fn_index": 0, "session_hash": "plain"}
    expected = ask(app, "POST", "/gradio_api/run/predict", plain).json()["data"][1]
    answer = ask(app, "POST", "/gradio_api/run/predict", {"fn_index": 0, "session_hash": "more", **more})
    assert (answer.status_code, answer.json()["data"][1]) == (200, expected)


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/deep_link?session_hash=x",
        "/gradio_api/file=/etc/hostname",
        "/gradio_api/file=http://127.0.0.1/",
        "/gradio_api/proxy=http://127.0.0.1/",
        "/gradio_api/queue/data?session_hash=x",
        "/gradio_api/upload_progress?upload_id=x",
        "/monitoring",
        "/static/../gradio_api/file=/etc/hostname",
    ],
)
def test_routes_that_store_or_fetch_are_closed(app: FastAPI, path: str) -> None:
    assert ask(app, "GET", path).status_code == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_closed(app: FastAPI, method: str) -> None:
    assert ask(app, method, "/").text == REFUSAL


@pytest.mark.parametrize("path", ["/", "/config", "/theme.css", "/favicon.ico"])
def test_the_page_itself_is_open(app: FastAPI, path: str) -> None:
    assert ask(app, "GET", path).status_code == 200


def test_the_refresh_answers_with_the_verdict(app: FastAPI) -> None:
    body: dict[str, object] = {"data": [None], "fn_index": 0, "session_hash": "abc"}
    answer = ask(app, "POST", "/gradio_api/run/predict", body)
    assert answer.status_code == 200
    assert "<h1>No run yet in bucket local:/b; start a trainer with this bucket.</h1>" in answer.json()["data"][1]


def test_a_second_refresh_of_the_same_snapshot_sends_only_what_has_changed(app: FastAPI) -> None:
    body: dict[str, object] = {"data": [None], "fn_index": 0, "session_hash": "def"}
    first, second = (ask(app, "POST", "/gradio_api/run/predict", body) for _ in range(2))
    assert len(second.content) < len(first.content)
    unchanged = second.json()["data"][1:]
    assert {item["__type__"] for item in unchanged} == {"update"}
    assert not any("value" in item for item in unchanged)


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ([5, "the newest", "12", "solved", "0.5"], ("", 12)),
        ([5, "r1", None, None, None], ("r1", None)),
        ([5, "r" * 97, "x", ["solved"], True], ("", None)),
        ([None, {"path": "/etc/hostname"}, 12, 1.5, -1], ("", 12)),
        (["the newest"], ("", None)),
    ],
    ids=str,
)
def test_of_what_a_visitor_chose_only_numbers_and_short_texts_arrive(
    given: list[object], arrives: tuple[str, int | None]
) -> None:
    asked: list[tuple[str, int | None]] = []

    def look(run_id: str, version: int | None) -> Snapshot:
        asked.append((run_id, version))
        return snapshot()

    async def make() -> FastAPI:
        app = FastAPI(openapi_url=None)
        mount(app, build(look))
        return app

    body: dict[str, object] = {"data": given, "fn_index": 0, "session_hash": "abc"}
    assert ask(asyncio.run(make()), "POST", "/gradio_api/run/predict", body).status_code == 200
    assert asked == [arrives]
