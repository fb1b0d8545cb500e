"""All routes together: OpenEnv's own, the status, the page, and the gate in front. Knows no ports and no settings."""

from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.mcp_types import JsonRpcErrorCode, JsonRpcResponse

from space_env.environment import RefusedError, WordleEnvironment
from space_env.gate import Gate
from space_env.models import WordleAction, WordleObservation, WordleState
from space_env.page import app as page
from space_env.sessions import Desk


def build_app(api_key: str | None, desk: Desk) -> FastAPI:
    """The environment with its page; with a key, only the page and the health check are open without it."""
    app = environment_app(api_key, desk)
    page.mount(app, page.build(desk.status))
    return app


def environment_app(api_key: str | None, desk: Desk) -> FastAPI:
    """The environment alone, which takes a second less to make."""
    app = FastAPI(title="Wordle environment")
    app.add_middleware(Gate, desk=desk, key=api_key)
    app.add_exception_handler(RefusedError, _refused)
    _add_own_routes(app, desk)
    _openenv(desk).register_routes(app)
    return app


def _openenv(desk: Desk) -> HTTPEnvServer:
    return HTTPEnvServer(
        partial(WordleEnvironment, desk.report),
        WordleAction,
        WordleObservation,
        max_concurrent_envs=desk.capacity,
        env_name="wordle",
        state_cls=WordleState,
    )


def _add_own_routes(app: FastAPI, desk: Desk) -> None:
    """Before OpenEnv's: the first route that matches answers."""

    @app.get("/status")
    async def status() -> dict[str, Any]:
        """Sessions, capacity, games, step latency in milliseconds, and what was refused and reaped since the start."""
        return desk.status()

    @app.post("/mcp")
    async def mcp() -> dict[str, Any]:
        """No tools are offered over MCP. OpenEnv's own route would open sessions here that no socket ever closes."""
        answer = JsonRpcResponse.error_response(JsonRpcErrorCode.METHOD_NOT_FOUND, "this environment has no MCP tools")
        return dict(answer.model_dump())


async def _refused(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 409)
