"""The door: one bearer key for everything but the health check. Knows nothing of what is behind it."""

import hmac

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health"})


class RequireKey:
    """Refuses a request without `Authorization: Bearer KEY` with 401, and a WebSocket before it opens."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._admits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "wrong or missing key"})
        else:
            refusal = JSONResponse({"error": "wrong or missing key: send Authorization: Bearer ENV_API_KEY"}, 401)
            await refusal(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["path"] in OPEN_PATHS:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)
