"""The faults that a stand-in is told to have, which request each one strikes, and what it does to body and answer."""

import asyncio
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, get_args

from starlette.types import Message, Receive, Send

BUCKETS = ("write-token", "read-token", "batch", "info", "tree", "resolve", "bucket", "bucket-create")
SPACES = ("whoami", "space-create", "duplicate", "space", "card", "preupload", "commit", "settings")
HUB = (*BUCKETS, *SPACES)
STORAGE = ("xorb-upload", "shard", "reconstruction", "xorb")
APPS = ("app",)
Kind = Literal["status", "stall", "slow", "drop", "truncate", "damage", "refuse", "lose", "list late", "bytes late"]


@dataclass(frozen=True)
class Fault:
    """See the package's docstring."""

    kind: Kind
    on: str
    path: str = ""
    times: int = 1
    after: int = 0
    status: int = 503
    retry_after: float | str | None = None
    body: str = '{"error": "the stand-in was told to refuse it"}'
    seconds: float = 0.0
    rate: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or self.on not in (*HUB, *STORAGE, *APPS, "hub", "storage", "any"):
            raise ValueError(f"no such fault: {self.kind!r} on {self.on!r}")

    def strikes(self, endpoint: str, paths: Collection[str]) -> bool:
        groups = {"hub": HUB, "storage": STORAGE, "any": (*HUB, *STORAGE, *APPS)}
        fits = not self.path or any(self.path in path for path in paths)
        return fits and endpoint in groups.get(self.on, (self.on,))


class Faults:
    """The first fault that fits a request strikes it. `counts` are the requests per endpoint, struck or not."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self.counts: Counter[str] = Counter()

    def add(self, fault: Fault) -> None:
        self._waiting.append(fault)

    def clear(self) -> None:
        self._waiting.clear()
        self.counts.clear()

    def take(self, endpoint: str, paths: Collection[str]) -> Fault | None:
        """Count a request, and say what happens to it."""
        self.counts[endpoint] += 1
        for number, fault in enumerate(self._waiting):
            if not fault.strikes(endpoint, paths):
                continue
            if fault.after:
                self._waiting[number] = replace(fault, after=fault.after - 1)
                continue
            if fault.times == 1:
                del self._waiting[number]
            elif fault.times:
                self._waiting[number] = replace(fault, times=fault.times - 1)
            return fault
        return None


class Broken(Exception):
    """The connection ends here, in the middle of an answer."""


class Struck:
    """A connection with a fault: `receive` and `send` of an ASGI application that is not told of it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.fault: Fault | None = None
        self._receive, self._send = receive, send
        self._sent, self._middle = 0, 0
        self.started = False

    async def receive(self) -> Message:
        message = await self._receive()
        await self._pace(len(message.get("body", b"")))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._start(message)
            return
        body = message.get("body", b"")
        await self._pace(len(body))
        if self._sent <= self._middle < self._sent + len(body):
            body = await self._strike(body, self._middle - self._sent)
        self._sent += len(body)
        await self._send({**message, "body": body})

    async def _start(self, message: Message) -> None:
        self.started = True
        lengths = [int(value) for name, value in message["headers"] if name == b"content-length"]
        self._middle = sum(lengths) // 2
        if self.fault is not None and self.fault.kind == "drop":
            await asyncio.sleep(self.fault.seconds)
            await self._send(message)
            raise Broken
        await self._send(message)

    async def _pace(self, count: int) -> None:
        if self.fault is not None and self.fault.kind == "slow":
            await asyncio.sleep(count / self.fault.rate)

    async def _strike(self, body: bytes, at: int) -> bytes:
        """What is sent in the place of the piece that has the middle of the answer."""
        if self.fault is None or self.fault.kind not in ("damage", "truncate", "stall"):
            return body
        if self.fault.kind == "damage":
            return body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
        await self._send({"type": "http.response.body", "body": body[:at], "more_body": True})
        await asyncio.sleep(self.fault.seconds)
        raise Broken
