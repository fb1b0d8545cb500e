"""The door in front of all routes: who may ask for what, and how large a request may be. Paths and keys; no frames.

With a key, everything needs `Authorization: Bearer KEY` but the health check and the page. A game on the page is a
session of `/ws` that is reached without the key, in numbers that leave room for those who have it. Without a key,
whoever comes from the Internet is a stranger; who has a private address, as this machine's own, is trusted.
"""

import hmac
import ipaddress
import re

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from space_env import messages
from space_env.frames import serve
from space_env.sessions import PLAYER, STRANGER, TRUSTED, Caller, Desk

GAMES, PAGE_GAMES = "/ws", "/play/ws"
_OPEN = re.compile(r"/|/health|/favicon\.ico|/play(/.*)?")
_NO_KEY = "wrong or missing key: send Authorization: Bearer ENV_API_KEY"


class Gate:
    """Refuses with 401 what needs the key, with 413 what is too large, with 422 what is not JSON; a WebSocket is for
    games only."""

    def __init__(self, app: ASGIApp, desk: Desk, key: str | None) -> None:
        self._app = app
        self._desk = desk
        self._key = key.encode() if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._open_game(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (_OPEN.fullmatch(scope["path"]) or self._has_key(scope)):
            await _refuse(401, _NO_KEY, scope, receive, send)
        elif (body := await _body(receive)) is None:
            await _refuse(413, f"a request has at most {messages.MAX_BYTES} bytes", scope, receive, send)
        elif problem := _problem(body):
            await _refuse(422, f"the body is not JSON as it should be: {problem}", scope, receive, send)
        else:
            await self._app(scope, _replayed(body, receive), send)

    async def _open_game(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Without the query, with which OpenEnv's handler would join a session that another WebSocket opened."""
        visitor, private = _visitor(scope)
        if scope["path"] == PAGE_GAMES:
            kind = PLAYER
        elif scope["path"] != GAMES:
            return await _refuse(404, f"games are played at {GAMES}", scope, receive, send)
        elif not self._has_key(scope):
            return await _refuse(401, _NO_KEY, scope, receive, send)
        else:
            kind = TRUSTED if self._key is not None or private else STRANGER
        scope = {**scope, "path": GAMES, "raw_path": GAMES.encode(), "query_string": b""}
        await serve(self._app, self._desk, Caller(visitor, kind), scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        if self._key is None:
            return True
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        return hmac.compare_digest(given.strip(), self._key) and scheme.lower() == b"bearer"


def _visitor(scope: Scope) -> tuple[str, bool]:
    """Who asks, as the proxy in front of a Space reports it (uvicorn puts it there), and whether that is private.
    One visitor has a whole /64 of IPv6."""
    host = scope["client"][0] if scope["client"] else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host, False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            network = ipaddress.IPv6Network((int(address), 64), strict=False)
            return str(network), not address.is_global
        address = address.ipv4_mapped
    return str(address), not address.is_global


async def _body(receive: Receive) -> bytes | None:
    """The whole request body; None when it is too large."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        body += message.get("body", b"")
        if len(body) > messages.MAX_BYTES:
            return None
        more = message.get("more_body", False)
    return body


def _problem(body: bytes) -> str:
    """What is wrong with the body; empty when nothing is. FastAPI answers some that are wrong with a server error."""
    try:
        messages.parse(body or b"null")
    except ValueError as error:
        return str(error)
    return ""


def _replayed(body: bytes, receive: Receive) -> Receive:
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return unread.pop() if unread else await receive()

    return replay


async def _refuse(status: int, sentence: str, scope: Scope, receive: Receive, send: Send) -> None:
    """A WebSocket that is not open yet is answered with the same HTTP response."""
    await JSONResponse({"error": sentence}, status)(scope, receive, send)
