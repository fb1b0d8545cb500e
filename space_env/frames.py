"""One WebSocket between its client and OpenEnv's own handler: its seat, and what that handler cannot bear kept off.

Knows frames as text; what they ask for and answer is OpenEnv's affair. A client that is gone without a word is noticed
by uvicorn's pings and the kernel (see `serve.py`); here, only a client that says nothing any more is sent away.
A message is answered before the next one is read, and between the two all other sessions have their turn.
"""

import asyncio
import json
import time
from typing import Any

from openenv.core.env_server.mcp_types import JsonRpcErrorCode, JsonRpcResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from space_env import messages
from space_env.sessions import RETRY_AFTER_S, Caller, Desk, NoSeatError, Session

GOING_AWAY, TRY_AGAIN_LATER = 1001, 1013
NO_MCP = JsonRpcResponse.error_response(JsonRpcErrorCode.METHOD_NOT_FOUND, "this environment has no MCP tools")
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
            await asyncio.sleep(0)  # a message that is there already is handed out without waiting
            message = await self._next()
            if message["type"] == "websocket.disconnect":
                self._count(message)
                return message
            self._session.asked = message.get("arrived", time.monotonic())
            answer = _own_answer(message) if message["type"] == "websocket.receive" else None
            if answer is None:
                return message
            await self.send(answer)

    async def send(self, message: Message) -> None:
        """Nothing, when the client is gone: OpenEnv's handler is told when it asks for the next message."""
        try:
            await self._send(message)
        except OSError:
            return
        self._desk.answered(self._session)

    def _count(self, disconnect: Message) -> None:
        if "cause" in disconnect:
            self._desk.ledger.reaped[disconnect["cause"]] += 1

    async def _next(self) -> Message:
        silence_s = self._desk.patience.limit_for(self._session)
        try:
            async with asyncio.timeout(silence_s):
                return await self._receive()
        except TimeoutError:
            return await self._send_away(silence_s)

    async def _send_away(self, silence_s: float) -> Message:
        reason = f"no message for {silence_s:g} s; connect again to play"
        await self.send({"type": "websocket.close", "code": GOING_AWAY, "reason": reason})
        cause = "abandoned" if self._session.playing else "idle"
        return {"type": "websocket.disconnect", "code": GOING_AWAY, "reason": reason, "cause": cause}


def _own_answer(message: Message) -> Message | None:
    """To what would end the session, and to MCP, over which one session could close another; None to all else."""
    try:
        found = messages.parse(message.get("text") or "")
    except ValueError as error:
        return _invalid(str(error))
    if not isinstance(found, dict):
        return _invalid(f"this is a {type(found).__name__}")
    return _answer("mcp", NO_MCP.model_dump()) if found.get("type") == "mcp" else None


def _invalid(problem: str) -> Message:
    return _answer("error", {"message": f"{_EXPECTED}; {problem}", "code": "INVALID_JSON"})


def _answer(kind: str, data: dict[str, Any]) -> Message:
    return {"type": "websocket.send", "text": json.dumps({"type": kind, "data": data})}


async def _refuse(error: NoSeatError, desk: Desk, receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    await send({"type": "websocket.accept"})
    numbers = {"active_sessions": desk.sessions, "max_sessions": desk.capacity, "retry_after_s": RETRY_AFTER_S}
    data = {"message": str(error), "code": "CAPACITY_REACHED", "reason": error.reason, **numbers}
    await send(_answer("error", data))
    await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": str(error)})
