"""A stand-in for the status of a Space, a real server on loopback whose answer a test changes while it runs."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from shared.types import Json


class StubStatus:
    """Answers every GET with `document`, or with `status` alone where that is not 200."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.status = 200
        self.asked = 0
        self.url = ""


@contextmanager
def stub(document: Json) -> Iterator[StubStatus]:
    told = StubStatus(document)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked += 1
            body = json.dumps(told.document).encode() if told.status == 200 else b""
            self.send_response(told.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
