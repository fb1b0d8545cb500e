"""All routes together: OpenEnv's own, the status, the page, and the gate in front. Knows no ports and no settings."""

import os
from functools import partial
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.serialization import serialize_observation
from openenv.core.env_server.types import HealthResponse, HealthStatus, ResetRequest, ResetResponse, StepRequest
from starlette.routing import BaseRoute, Route, WebSocketRoute

from shared.identity import identity
from space_env.environment import RefusedError, WordleEnvironment
from space_env.frames import NO_MCP
from space_env.gate import GAMES, Gate
from space_env.models import WordleAction, WordleObservation, WordleState
from space_env.page import app as page
from space_env.sessions import Desk

NOTHING_KEPT = f"over HTTP nothing is kept from one request to the next: games are played over the WebSocket {GAMES}"
_FROM_OPENENV = {GAMES, "/state", "/metadata", "/schema"}
_RESET_SCHEMA = {"content": {"application/json": {"schema": ResetRequest.model_json_schema()}}}


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
    _add_reset_and_step(app)
    app.router.routes += _openenv_routes(desk)
    return app


def _openenv_routes(desk: Desk) -> list[BaseRoute]:
    """Those that make sense here: not the ones for tasks, of which it has none, nor for MCP, which opens sessions that
    no socket ever closes."""
    everything = FastAPI()
    _openenv(desk).register_routes(everything)
    routes = [route for route in everything.routes if isinstance(route, Route | WebSocketRoute)]
    return [route for route in routes if route.path in _FROM_OPENENV]


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
    @app.get("/status")
    async def status() -> dict[str, Any]:
        """Sessions, capacity, games, step latency in milliseconds, and what was refused and reaped since the start."""
        return {**desk.status(), **identity(os.environ)}

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> HealthResponse:
        return HealthResponse(status=HealthStatus.HEALTHY)

    @app.post("/mcp")
    async def mcp() -> dict[str, Any]:
        """No tools are offered over MCP."""
        return dict(NO_MCP.model_dump())


def _add_reset_and_step(app: FastAPI) -> None:
    """OpenEnv's own take other values over HTTP than over a WebSocket."""

    @app.post("/reset", openapi_extra={"requestBody": _RESET_SCHEMA}, responses={409: {"description": "refused"}})
    async def reset(arguments: Annotated[dict[str, Any], Body(default_factory=dict)]) -> ResetResponse:
        """The opening observation of a game that nobody can play."""
        observation = WordleEnvironment().reset(**arguments)
        return ResetResponse(**serialize_observation(observation))

    @app.post("/step", responses={409: {"description": "always, for a step that is one"}})
    async def step(request: StepRequest) -> None:
        raise RefusedError(NOTHING_KEPT)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 409)
