"""A server that sends every request on to another one."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.http_servers import LoopbackServer, QuietHandler, listening


class _Handler(QuietHandler):
    server: "_Server"

    def do_GET(self) -> None:
        target = self.server.target
        if "Upgrade" in self.headers:
            target = target.replace("http", "ws", 1)
        self.reply(307, headers={"Location": target + self.path})

    do_POST = do_GET


class _Server(LoopbackServer):
    target: str


@contextmanager
def redirecting(target: str) -> Iterator[str]:
    """Its address. What is sent on goes to `target`, an http address, or its WebSocket."""
    server = _Server(_Handler)
    server.target = target
    with listening(server) as url:
        yield url
