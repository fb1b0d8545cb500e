"""A stand-in for vLLM's `/v1/completions` on loopback: answers each prompt with itself and one more token."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class CompletionsServer(ThreadingHTTPServer):
    """Keeps what it was sent. Model `silent` is never answered before `released`, model `unknown` gets a 404."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
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
        payload = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def completions_server() -> Iterator[CompletionsServer]:
    server = CompletionsServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join(10)
        server.server_close()
