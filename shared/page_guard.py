"""What a visitor may ask of a mounted Gradio app: its page, its static files and its refresh. All else is 404.

Gradio also has routes that store uploads and recordings, write deep links, fetch other addresses and serve files; new
releases add more. So what is allowed is listed, not what is refused: of a refresh, which one it is and whose. Knows
paths and that one body.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared import strict_json

MAX_BODY_BYTES = 16 * 1024
_LONGEST_TEXT = 96
_PAGE = re.compile(
    r"/|/config/?|/theme\.css|/(?:gradio_api/)?(?:info|startup-events)/?|/manifest\.json|/favicon\.ico|/robots\.txt"
    r"|/(?:assets|static|svelte)/.*|/gradio_api/(?:theme\.css|app_id|heartbeat/[A-Za-z0-9]+)"
)
_REFRESH = re.compile(r"/gradio_api/run/predict/?")
_LOGIN = re.compile(r"/login/?")
_SESSION = re.compile(r"[A-Za-z0-9]{1,64}")

Takes = Callable[[Any], bool]


class ReadOnly:
    """Wraps the app that is mounted: `root_path` is where, and the rest of the path is what is asked.

    `refreshes` has the inputs of each function that may be called, and of each which values of a visitor's it takes;
    in the place of others is nothing. With a login, what is sent to it is let through too; Gradio closes the rest.
    """

    def __init__(self, app: ASGIApp, refreshes: Mapping[int, Sequence[Takes]], has_login: bool = False) -> None:
        self._app = app
        self._refreshes = refreshes
        self._has_login = has_login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        path = scope["path"].removeprefix(scope["root_path"])
        if scope["method"] in ("GET", "HEAD") and _PAGE.fullmatch(path):
            await self._app(scope, receive, send)
        elif scope["method"] == "POST" and _REFRESH.fullmatch(path):
            await self._refresh(scope, receive, send)
        elif scope["method"] == "POST" and self._has_login and _LOGIN.fullmatch(path):
            await self._log_in(scope, receive, send)
        else:
            await PlainTextResponse("there is no such page here\n", 404)(scope, receive, send)

    async def _refresh(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _body(Request(scope, receive))
            asked = self._checked(body)
        except ValueError as error:
            return await PlainTextResponse(f"{error}\n", 422)(scope, receive, send)
        except ClientDisconnect:
            return
        await self._app(_of_length(scope, len(asked)), _replayed(asked, receive), send)

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _body(Request(scope, receive))
        except ValueError as error:
            return await PlainTextResponse(f"{error}\n", 422)(scope, receive, send)
        except ClientDisconnect:
            return
        await self._app(scope, _replayed(body, receive), send)

    def _checked(self, body: bytes) -> bytes:
        """The request with nothing in it but what a refresh needs. ValueError when it is none."""
        asked = strict_json.parse(body)
        if not isinstance(asked, dict):
            raise ValueError("a refresh is an object")
        function, session = asked.get("fn_index"), asked.get("session_hash")
        if type(function) is not int or function not in self._refreshes:
            raise ValueError("fn_index is none of this page's refreshes")
        if not isinstance(session, str) or not _SESSION.fullmatch(session):
            raise ValueError("session_hash must be 1 to 64 letters and digits")
        data = _data(asked.get("data"), self._refreshes[function])
        return json.dumps({"data": data, "fn_index": function, "session_hash": session}).encode()


def is_plain(value: Any) -> bool:
    """Whether it is a number or a short text."""
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT
    return type(value) in (int, float) and math.isfinite(value)


def _data(given: Any, inputs: Sequence[Takes]) -> list[Any]:
    values = given if isinstance(given, list) and len(given) == len(inputs) else [None] * len(inputs)
    return [value if takes(value) else None for value, takes in zip(values, inputs, strict=True)]


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"a refresh has at most {MAX_BODY_BYTES} bytes")
    return body


def _of_length(scope: Scope, length: int) -> Scope:
    others = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"content-type")]
    own = [(b"content-length", str(length).encode()), (b"content-type", b"application/json")]
    return {**scope, "headers": others + own}


def _replayed(body: bytes, receive: Receive) -> Receive:
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return unread.pop() if unread else await receive()

    return replay
