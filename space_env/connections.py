"""uvicorn's connections with what they lack among strangers. Knows bytes and time limits, no session and no game.

What a client sends goes on with `arrived`, in seconds of the monotonic clock; a disconnect that the server decided on
has a `cause`, one word for the ledger.
"""

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

POLICY_VIOLATION, INTERNAL_ERROR = 1008, 1011
MAX_FRAMES = 16
"""In one read. Who waits for answers sends one, and a ping or two that came meanwhile."""
_PIECE_BYTES = 512


class HttpConnection(HttpToolsProtocol):
    """Closed when no whole request arrives within uvicorn's keep-alive time, the first one included."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_a_request()

    def data_received(self, data: bytes) -> None:
        self._expect_a_request()
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._expect_a_request()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._expect_nothing()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_a_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class GameConnection(WebSocketsSansIOProtocol):
    """Closed when its client sends many frames without waiting for answers: reading them would hold up all others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue: asyncio.Queue[Any] = _Arrivals()
        self._frames = 0

    def data_received(self, data: bytes) -> None:
        """A read may hold tens of thousands of frames; they are counted before all of them are parsed."""
        self._frames = 0
        for start in range(0, len(data), _PIECE_BYTES):
            super().data_received(data[start : start + _PIECE_BYTES])
            if self.disconnected:
                return

    def handle_events(self) -> None:
        self._frames += len(self.conn.events)
        if self._frames > MAX_FRAMES:
            self.conn.events_received()
            self._end(POLICY_VIOLATION, "send one message, and the next when it is answered", "flooding")
        else:
            super().handle_events()

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self.disconnected = True

    def keepalive_timeout(self) -> None:
        self._end(INTERNAL_ERROR, "keepalive ping timeout", "unresponsive")

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, TimeoutError):
            self._disconnect(1006, str(exc), "unresponsive")
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        """uvicorn takes a denied handshake for an unanswered one, and logs an error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def _end(self, code: int, reason: str, cause: str) -> None:
        if self.close_sent or self.transport.is_closing():
            return
        self.stop_keepalive()
        self._disconnect(code, reason, cause)
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.disconnected = True  # an answer to what came before is then dropped, not an error
        self.transport.close()

    def _disconnect(self, code: int, reason: str, cause: str) -> None:
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason, "cause": cause})


class _Arrivals(asyncio.Queue[Any]):
    def put_nowait(self, item: Any) -> None:
        super().put_nowait({**item, "arrived": time.monotonic()})
