"""What a visitor may ask of a mounted Gradio app: its page, its static files and one refresh. All else is 404.

Gradio also has routes that store uploads and recordings, write deep links, fetch other addresses and serve files; new
releases add more. So what is allowed is listed, not what is refused. Knows paths only.
"""

import re

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_ALLOWED = {
    "GET": re.compile(
        r"/|/config/?|/theme\.css|/(?:gradio_api/)?(?:info|startup-events)/?|/manifest\.json|/favicon\.ico|/robots\.txt"
        r"|/(?:assets|static|svelte)/.*|/gradio_api/(?:theme\.css|app_id|heartbeat/[A-Za-z0-9]+)"
    ),
    "POST": re.compile(r"/gradio_api/run/predict/?"),
}
_ALLOWED["HEAD"] = _ALLOWED["GET"]


class ReadOnly:
    """Wraps the app that is mounted: `root_path` is where, and the rest of the path is what is asked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _allowed(scope["method"], scope["path"].removeprefix(scope["root_path"])):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse("there is no such page here\n", 404)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def _allowed(method: str, path: str) -> bool:
    pattern = _ALLOWED.get(method)
    return pattern is not None and pattern.fullmatch(path) is not None
