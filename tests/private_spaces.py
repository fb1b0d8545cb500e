"""A stand-in for the proxy in front of a private Space, with its rules about headers and time. It looks no further.

- The Hub's token is in X-HF-Authorization, which is taken out, or in Authorization, which is passed on.
- Without it the answer is 404 and a page of HTML, as if there were no such Space.
- A response is cut after a minute. A WebSocket is not.

A Space's name ends in .hf.space and is asked over TLS. A process finds it with the settings of `reaching_spaces`; the
module `HERE`, run with them, does the same for this process.
"""

import asyncio
import functools
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import trustme

from tests.conftest import ROOT

HERE = ROOT / "tests" / "hf_space" / "sitecustomize.py"
MINUTE_S = 60.0
DEADLINE_S = 20.0
_END = b"\r\n\r\n"
_PAGE = b"<!doctype html><html><title>404</title><h1>404</h1><p>Sorry, we can't find the page you are looking for.</p>"
_NOT_FOUND = (
    b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_PAGE), _PAGE)
)


@dataclass
class Request:
    """The first line and the headers of a request."""

    line: str
    headers: list[tuple[str, str]]

    @classmethod
    def parsed(cls, head: bytes) -> "Request":
        line, *lines = head.removesuffix(_END).decode("latin-1").split("\r\n")
        pairs = [one.partition(":") for one in lines]
        return cls(line, [(name, value.strip()) for name, _, value in pairs])

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.headers if name.lower() in names]

    def passed_on(self) -> bytes:
        """As the Space gets it. One request per connection, so that each is looked at."""
        dropped = {"x-hf-authorization"} | (set() if self.is_upgrade else {"connection"})
        kept = [(name, value) for name, value in self.headers if name.lower() not in dropped]
        added = [("X-Forwarded-For", "203.0.113.7"), ("X-Forwarded-Proto", "https")]
        closing = [] if self.is_upgrade else [("Connection", "close")]
        lines = [self.line, *(f"{name}: {value}" for name, value in [*kept, *added, *closing])]
        return "\r\n".join(lines).encode("latin-1") + _END

    @property
    def is_upgrade(self) -> bool:
        return bool(self.values("upgrade"))


class PrivateSpace:
    """The address of an app, made private. `refused` counts requests without the token."""

    def __init__(self, name: str, app: str, token: str, minute_s: float) -> None:
        target = urlsplit(app)
        self.name, self.port = name, 0
        self.refused = self.passed = self.cut = 0
        self._target = target.hostname, target.port
        self._token, self._minute_s = f"Bearer {token}", minute_s

    @property
    def url(self) -> str:
        return f"https://{self.name}.hf.space:{self.port}"

    async def serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # somebody hung up
            try:
                await self._answer(client, back)
                back.close()
                await back.wait_closed()
            finally:
                back.transport.abort()

    async def _answer(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        request = Request.parsed(await client.readuntil(_END))
        if self._token in request.values("authorization", "x-hf-authorization"):
            self.passed += 1
            await self._pass_on(request, client, back)
        else:
            self.refused += 1
            back.write(_NOT_FOUND)
            await back.drain()

    async def _pass_on(self, request: Request, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        answer, there = await asyncio.open_connection(*self._target)
        there.write(request.passed_on())
        sending = asyncio.create_task(_pump(client, there))
        try:
            async with asyncio.timeout(None if request.is_upgrade else self._minute_s):
                await _pump(answer, back)
        except TimeoutError:
            self.cut += 1
        finally:
            sending.cancel()
            there.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while block := await source.read(1 << 16):
            target.write(block)
            await target.drain()


@functools.cache
def _authority() -> trustme.CA:
    return trustme.CA()


def _certified() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _authority().issue_cert("*.hf.space").configure_cert(context)
    return context


def reaching_spaces(folder: Path) -> dict[str, str]:
    """The environment of a process that is to find the private Spaces. `folder` keeps whom it trusts."""
    trusted = folder / "authority.pem"
    _authority().cert_pem.write_to_path(str(trusted))
    return {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(ROOT)]), "SPACES_AUTHORITY": str(trusted)}


@contextmanager
def private_space(name: str, app: str, token: str, minute_s: float = MINUTE_S) -> Iterator[PrivateSpace]:
    space, ready = PrivateSpace(name, app, token, minute_s), threading.Event()
    loop, done = asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        server = await asyncio.start_server(space.serve, "127.0.0.1", 0, ssl=_certified())
        space.port = server.sockets[0].getsockname()[1]
        ready.set()
        await done.wait()
        server.close()  # what is still open is cut at the loop's end

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        assert ready.wait(DEADLINE_S), "the proxy has not started"
        yield space
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the proxy does not end"
