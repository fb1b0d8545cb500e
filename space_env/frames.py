"""One WebSocket between its client and OpenEnv's own handler: its seat, and what that handler cannot bear kept off.

Knows frames as text; what they ask for and answer is OpenEnv's affair. A client that is gone without a word is noticed
by uvicorn's pings and the kernel (see `serve.py`); here, only a client that says nothing any more is sent away.
"""

import asyncio
import json
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared import strict_json
from space_env.sessions import RETRY_AFTER_S, Caller, Desk, NoSeatError, Session

GOING_AWAY, TRY_AGAIN_LATER = 1001, 1013
_EXPECTED = 'a message is a JSON object in a text frame, such as {"type": "reset", "data": {"seed": 7}}'


async def serve(app: ASGIApp, desk: Desk, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
    """Play games over this WebSocket until it closes; without a free seat, say so in OpenEnv's words and close it."""
    try:
        with desk.seat(caller) as session:
            wire = Wire(desk, session, receive, send)
            await app(scope, wire.receive, wire.send)
    except NoSeatError as error:
        await _refuse(error, desk, receive, send)


class Wire:
    """What OpenEnv's handler receives from and sends to."""

    def __init__(self, desk: Desk, session: Session, receive: Receive, send: Send) -> None:
        self._desk = desk
        self._session = session
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        while True:
            message = await self._next()
            self._session.asked = time.monotonic()
            problem = _problem(message) if message["type"] == "websocket.receive" else ""
            if not problem:
                return message
            await self._send(_error({"message": f"{_EXPECTED}; {problem}", "code": "INVALID_JSON"}))

    async def send(self, message: Message) -> None:
        await self._send(message)
        self._desk.answered(self._session)

    async def _next(self) -> Message:
        silence_s = self._desk.patience.limit_for(self._session)
        try:
            async with asyncio.timeout(silence_s):
                return await self._receive()
        except TimeoutError:
            return await self._send_away(silence_s)

    async def _send_away(self, silence_s: float) -> Message:
        self._desk.ledger.reaped["abandoned" if self._session.playing else "idle"] += 1
        reason = f"no message for {silence_s:g} s; connect again to play"
        await self._send({"type": "websocket.close", "code": GOING_AWAY, "reason": reason})
        return {"type": "websocket.disconnect", "code": GOING_AWAY, "reason": reason}


def _problem(message: Message) -> str:
    """Why OpenEnv's handler would end the session over this; empty when it would not."""
    try:
        found = strict_json.parse(message.get("text") or "")
    except ValueError as error:
        return str(error)
    return "" if isinstance(found, dict) else f"this is a {type(found).__name__}"


def _error(data: dict[str, Any]) -> Message:
    return {"type": "websocket.send", "text": json.dumps({"type": "error", "data": data})}


async def _refuse(error: NoSeatError, desk: Desk, receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    await send({"type": "websocket.accept"})
    numbers = {"active_sessions": desk.sessions, "max_sessions": desk.capacity, "retry_after_s": RETRY_AFTER_S}
    await send(_error({"message": str(error), "code": "CAPACITY_REACHED", "reason": error.reason, **numbers}))
    await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": str(error)})
