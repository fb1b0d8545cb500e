"""Small HTTP servers on loopback, in a thread of the test's process. Knows nothing of what they answer."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

_POLL_S, _ENDING_S = 0.02, 10.0


class QuietHandler(BaseHTTPRequestHandler):
    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class LoopbackServer(ThreadingHTTPServer):
    """On a free port. A request that is still answered does not keep it from ending."""

    daemon_threads = True

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def listening(server: LoopbackServer) -> Iterator[str]:
    """Its address, while it answers."""
    thread = Thread(target=server.serve_forever, args=(_POLL_S,))
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        thread.join(_ENDING_S)
        server.server_close()


@contextmanager
def dripping(start: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n") -> Iterator[str]:
    """The address of a server whose answer never ends, though it is never silent."""
    done = Event()

    def drip() -> None:
        client, _ = listener.accept()
        with client, suppress(OSError):
            client.sendall(start)
            while not done.wait(0.05):
                client.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=drip)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join(_ENDING_S)
