"""A stand-in on a thread of this process, and the handle with which any process gives one its faults."""

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tests.hub.app import StandInHub
from tests.hub.faults import Fault, Kind

LOOPBACK = "127.0.0.1"
DEADLINE_S = 20.0


class StandIn:
    """A running stand-in, in this process or in another."""

    def __init__(self, url: str) -> None:
        self.url = url

    def environment(self, cache: Path) -> dict[str, str]:
        """What makes the Hub's clients of another process use it; `cache` is a folder of theirs."""
        return {"HF_ENDPOINT": self.url, "HF_XET_CACHE": str(cache), "HF_HUB_OFFLINE": "0"}

    def inject(self, kind: Kind, on: str, **values: Any) -> None:
        """Let a fault wait for the requests that it strikes; ValueError when there is none such."""
        self._control("POST", "fault", asdict(Fault(kind, on, **values)))

    def remove(self, bucket: str, path: str) -> None:
        """Lose a file for good."""
        self._control("POST", "remove", {"bucket": bucket, "path": path})

    def described(self) -> dict[str, Any]:
        """What is there: `spaces` with all that they hold, secrets too; `buckets` with whether they are private."""
        return self._control("GET", "spaces")

    def change(self, name: str, **values: Any) -> None:
        """Somebody changes a Space, made when there is none, or with `is_bucket` a bucket."""
        self._control("POST", "spaces", {"name": name, **values})

    def clear(self) -> None:
        """No more faults, and all counts from 0."""
        self._control("DELETE", "faults")

    def empty(self) -> None:
        """No more files in any bucket, no Spaces, no faults, and all counts from 0."""
        self._control("DELETE", "files")
        self.clear()

    def count(self, endpoint: str) -> int:
        """The requests that an endpoint got so far."""
        return int(self._control("GET", "counts").get(endpoint, 0))

    def _control(self, method: str, place: str, body: object = None) -> dict[str, Any]:
        options: dict[str, Any] = {"trust_env": False, "verify": False, "timeout": DEADLINE_S}
        answer = httpx.request(method, f"{self.url}/control/{place}", json=body, **options).raise_for_status()
        told: dict[str, Any] = answer.json()
        return told


def server_of(hub: StandInHub, port: int = 0) -> uvicorn.Server:
    # What a fault breaks off is no error of the server's, so it tells nothing of it; and it waits for no stall to end.
    quiet: dict[str, Any] = {"log_level": "critical", "timeout_graceful_shutdown": 1}
    return uvicorn.Server(uvicorn.Config(hub.app(), host=LOOPBACK, port=port, lifespan="off", **quiet))


@contextmanager
def stand_in(folder: Path | None = None, token: str | None = None, bucket: str | None = None) -> Iterator[StandIn]:
    """A stand-in on a free port. It keeps its files in `folder`, for good, or in one that goes when it ends.

    `token` is the one it asks for, None: any or none; `bucket` the one it has, None: every.
    """
    with tempfile.TemporaryDirectory() as temporary, socket.create_server((LOOPBACK, 0)) as listener:
        server = server_of(StandInHub(folder or Path(temporary), token, bucket))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            _wait_until_started(server)
            yield StandIn(f"http://{LOOPBACK}:{listener.getsockname()[1]}")
        finally:
            server.should_exit = server.force_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the stand-in does not end"


def _wait_until_started(server: uvicorn.Server) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not server.started:
        assert time.monotonic() < deadline, f"the stand-in has not started within {DEADLINE_S} s"
        time.sleep(0.01)
