"""A stand-in for vLLM's `/v1/completions` on loopback: answers each prompt with itself and one more token."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.http_servers import LoopbackServer, QuietHandler, listening


class CompletionsServer(LoopbackServer):
    """Keeps what it was sent. Model `silent` is never answered before `released`, model `unknown` gets a 404."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.released = threading.Event()


class _Handler(QuietHandler):
    server: CompletionsServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.keys.append(self.headers["Authorization"])
        if body["model"] == "silent":
            self.server.released.wait(30)
            self.close_connection = True
        elif body["model"] == "unknown" or self.path != "/v1/completions":
            self._answer(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        else:
            self._answer(200, {"choices": [{"token_ids": [*body["prompt"], 7], "text": ""}]})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        self.reply(status, json.dumps(content).encode())


@contextmanager
def completions_server() -> Iterator[CompletionsServer]:
    server = CompletionsServer()
    with listening(server):
        try:
            yield server
        finally:
            server.released.set()
