"""The real server on a thread of the test's own process, on loopback, for tests that need no process of its own, and
not the page.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from space_env.app import environment_app
from space_env.serve import PING_S, REQUEST_S, bind, server_of
from space_env.sessions import CAPACITY, PATIENCE, Desk, Patience

DEADLINE_S = 20.0


@contextmanager
def running(
    api_key: str | None = None,
    capacity: int = CAPACITY,
    port: int = 0,
    patience: Patience = PATIENCE,
    ping_s: float = PING_S,
    request_s: int = REQUEST_S,
) -> Iterator[str]:
    """The URL of a server that answers; it is stopped, with every connection to it, at the end."""
    listener = bind("127.0.0.1", port, unread_s=2 * ping_s)
    server = server_of(environment_app(api_key, Desk(capacity, patience)), ping_s, request_s)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        listener.close()
        assert not thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not so within {DEADLINE_S} s"
        time.sleep(0.02)


def get(url: str, key: str | None = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    return answer_to(urllib.request.Request(url, headers={**bearer(key), **(headers or {})}))


def post(url: str, body: bytes, key: str | None = None) -> tuple[int, Any]:
    return answer_to(urllib.request.Request(url, body, {"Content-Type": "application/json", **bearer(key)}))


def bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def answer_to(request: urllib.request.Request) -> tuple[int, Any]:
    """Status and JSON body, of errors too."""
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def status(url: str, key: str | None = None) -> dict[str, Any]:
    code, document = get(f"{url}/status", key)
    assert code == 200, document
    return dict(document)


def has_sessions(url: str, count: int, key: str | None = None) -> Callable[[], bool]:
    return lambda: bool(status(url, key)["sessions"] == count)


def socket_of(url: str, path: str = "/ws") -> str:
    return url.replace("http", "ws", 1) + path
