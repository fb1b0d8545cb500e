"""A server that sends every request on to another one."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_GET(self) -> None:
        target = self.server.target
        if "Upgrade" in self.headers:
            target = target.replace("http", "ws", 1)
        self.send_response(307)
        self.send_header("Location", target + self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    target: str


@contextmanager
def redirecting(target: str) -> Iterator[str]:
    """Its address. What is sent on goes to `target`, an http address, or its WebSocket."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.target = target
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
