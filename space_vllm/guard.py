"""Who may reach what: pure ASGI middleware around the whole server, closed by default.

Compares the key, looks at the door and at how an answer ended; knows no weights. Without the endpoint plugin's state
it lets nobody in.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from space_vllm.space import Door

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

STATE = "delta_access"  # where in the app's state `Access` is

# Never in a JSON string, where the quotes would be escaped. It may be split between two parts of a body.
_ABORT = re.compile(rb'"finish_reason" ?: ?"abort"')
_ABORT_BYTES = len('"finish_reason" : "abort"') - 1

_NOT_LOADED = (
    "the plugin delta_sync was not loaded, so no weights can be verified: install this project beside vLLM and set "
    "VLLM_PLUGINS=delta_sync"
)


@dataclass(frozen=True)
class Access:
    api_key: str = field(repr=False)
    door: Door


class Guard:
    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif STATE not in scope["app"].state:
            await _refuse(503, _NOT_LOADED)(scope, receive, send)
        else:
            await self._http(scope["app"].state[STATE], scope, receive, send)

    async def _http(self, access: Access, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if _is_open(path):
            await self._app(scope, receive, send)
        elif not _is_keyed(path):
            await _refuse(404, f"there is nothing at {path}")(scope, receive, send)
        elif not _has_key(scope, access.api_key):
            await _refuse(401, "send the key VLLM_API_KEY as 'Authorization: Bearer KEY'")(scope, receive, send)
        elif not path.startswith("/v1/"):
            await self._app(scope, receive, send)
        elif not access.door.is_open:
            await _refuse(503, f"no verified weights are served: {access.door.reason}")(scope, receive, send)
        else:
            await self._app(scope, receive, _Answer(access.door, scope, receive, send))


class _Answer:
    """Sends an answer only when it is known to be whole and made with verified weights; refuses it otherwise.

    It is known at the end of the body. An event stream is not held back: it is cut at the first bad sign.
    """

    def __init__(self, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
        self._door = door
        self._scope, self._receive, self._send = scope, receive, send
        self._closings = door.closings
        self._held: list[Message] = []
        self._seen = b""
        self._streams = self._started = self._dropped = False

    async def __call__(self, message: Message) -> None:
        if self._dropped:
            return
        if (flaw := self._flaw(message)) is not None:
            self._dropped = True
            await self._give_up(flaw)
            return
        if message["type"] == "http.response.start":
            self._streams = _is_event_stream(message)
        self._held.append(message)
        if self._streams or not _has_more(message):
            await self._release()

    def _flaw(self, message: Message) -> str | None:
        if self._door.closings != self._closings:
            return "the weights were lost while this answer was made; ask again"
        seen = self._seen + bytes(message.get("body", b""))
        self._seen = seen[-_ABORT_BYTES:]
        return "vLLM aborted this answer before its end; ask again" if _ABORT.search(seen) else None

    async def _give_up(self, flaw: str) -> None:
        if self._started:
            raise ConnectionAbortedError(flaw)
        await _refuse(503, flaw)(self._scope, self._receive, self._send)

    async def _release(self) -> None:
        held, self._held = self._held, []
        self._started = True
        for message in held:
            await self._send(message)


def _is_event_stream(start: Message) -> bool:
    return Headers(raw=list(start.get("headers", []))).get("content-type", "").startswith("text/event-stream")


def _has_more(message: Message) -> bool:
    return message["type"] == "http.response.start" or bool(message.get("more_body", False))


def _is_open(path: str) -> bool:
    return path in ("/", "/health", "/favicon.ico", "/monitor") or path.startswith("/monitor/")


def _is_keyed(path: str) -> bool:
    return path == "/metrics" or path.startswith(("/v1/", "/weights/"))


def _has_key(scope: Scope, key: str) -> bool:
    scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), key.encode())


def _refuse(status: int, sentence: str) -> JSONResponse:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status)
    return JSONResponse({"error": sentence}, status, headers)
