"""The Space's own routes in vLLM's server, and what they share. The guard has checked the key before they run."""

import asyncio
import os
import signal
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.datastructures import State
from starlette.responses import JSONResponse, RedirectResponse, Response

from shared.bucket import open_bucket
from shared.identity import identity
from shared.types import LARGEST_VERSION
from space_vllm.engine import Deadlines, Engine, EngineClient, EngineError
from space_vllm.guard import STATE, Access
from space_vllm.limits import refuse_unsafe
from space_vllm.log import LOG
from space_vllm.monitor import SpaceMonitor
from space_vllm.reconciler import Reconciler
from space_vllm.settings import Settings
from space_vllm.source import Source
from space_vllm.space import Door
from space_vllm.updates import Updates

N = TypeVar("N", int, float)

_LOOK_S = 5.0
_UPDATE_WAIT_S, _LONGEST_WAIT_S = 20.0, 50.0  # proxies cut an answer after about a minute


@dataclass(frozen=True)
class Space:
    """`facts` are what the status tells of the engine, constant while it runs."""

    engine: Engine
    reconciler: Reconciler
    updates: Updates
    facts: dict[str, Any]

    def status(self) -> dict[str, Any]:
        """What `GET /weights/status` tells."""
        return {**self.reconciler.status.to_json(), **self.facts}


class EndpointPlugin:
    """The interface of vLLM's endpoint plugins."""

    required_tasks = ("generate",)

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: list[asyncio.Task[None]] = []
        self._monitor = SpaceMonitor()

    def attach_router(self, app: FastAPI) -> None:
        add_routes(app)
        self._monitor.mount(app, Settings.from_environment(os.environ).login)

    async def init_state(self, engine_client: EngineClient, state: State, args: Namespace) -> None:
        config = state.vllm_config
        refuse_unsafe(config)
        facts = {
            "served_model_names": args.served_model_name or [args.model],
            "logprobs_mode": str(config.model_config.logprobs_mode),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
        }
        settings = Settings.from_environment(os.environ)
        space = install(state, settings, engine_client, Deadlines(), facts)
        self._monitor.start(settings, space.status)
        self._tasks = [
            asyncio.create_task(space.reconciler.run(), name="reconciler"),
            asyncio.create_task(end_when_hung(space.engine, _LOOK_S), name="watch"),
        ]


def add_routes(app: FastAPI) -> None:
    """The Space's own, without the monitor."""
    app.add_api_route("/", _root, methods=["GET"], include_in_schema=False)
    app.add_api_route("/health", _health, methods=["GET"])
    app.add_api_route("/weights/update", _update, methods=["POST"])
    app.add_api_route("/weights/status", _status, methods=["GET"])
    app.add_api_route("/weights/checksums", _checksums, methods=["GET"])


def install(
    state: State, settings: Settings, client: EngineClient, deadlines: Deadlines, facts: dict[str, Any]
) -> Space:
    """Put the Space together and where guard and routes look for it. The reconciler is not started."""
    door, engine = Door(), Engine(client, deadlines)
    source = Source(lambda: open_bucket(settings.bucket, settings.hf_token), settings.run_id, deadlines.bucket)
    reconciler = Reconciler(engine, source, door, deadlines, settings.audit_s)
    told = {"bucket": settings.bucket, "pinned_run": settings.run_id, **identity(os.environ), **facts}
    space = Space(engine, reconciler, Updates(settings, reconciler, door), told)
    state[STATE] = Access(settings.api_key, door)
    state.delta_space = space
    return space


async def end_when_hung(engine: Engine, look_s: float) -> None:
    """Ends this server, for its parent to start another one, when its engine stays silent: vLLM alone never does."""
    while not engine.is_hung:
        await asyncio.sleep(look_s)
    LOG.critical("vLLM's engine does not answer any more; the server ends")
    signal.raise_signal(signal.SIGTERM)


async def _root() -> Response:
    return RedirectResponse("/monitor/")


async def _health(request: Request) -> Response:
    """200 only while a verified version is live, none is being caught up, and the engine runs."""
    access: Access = request.app.state[STATE]
    status = _space(request).reconciler.status
    if not access.door.is_open:
        return JSONResponse({"error": f"no verified weights are served: {access.door.reason}"}, 503)
    if status.state == "catching_up":
        return JSONResponse({"error": f"version {status.version} is served, a newer one is being caught up"}, 503)
    if _space(request).engine.is_dead:
        return JSONResponse({"error": "vLLM's engine has ended; restart the server"}, 503)
    return Response()


async def _update(request: Request) -> Response:
    seconds = _number(request, "wait", float, _UPDATE_WAIT_S)
    if seconds is None:
        return _malformed("wait")
    return await _space(request).updates.answer(await request.body(), min(seconds, _LONGEST_WAIT_S))


async def _status(request: Request) -> Response:
    """With `version` and `wait`, answers when that version or a later one is live, or the time is over."""
    space = _space(request)
    version, seconds = _number(request, "version", int, 0), _number(request, "wait", float, 0.0)
    if version is None or seconds is None:
        return _malformed("version" if version is None else "wait")
    status = space.reconciler.status
    await status.until(lambda: status.reached(version), min(seconds, _LONGEST_WAIT_S))
    return JSONResponse(space.status())


async def _checksums(request: Request) -> Response:
    try:
        return JSONResponse(await _space(request).engine.checksums())
    except EngineError as error:
        return JSONResponse({"error": str(error)}, 503)


def _space(request: Request) -> Space:
    space: Space = request.app.state.delta_space
    return space


def _number(request: Request, name: str, parse: Callable[[str], N], default: N) -> N | None:
    try:
        value = parse(request.query_params.get(name, str(default)))
    except ValueError:
        return None
    return value if 0 <= value <= LARGEST_VERSION else None  # no wait is that long either


def _malformed(name: str) -> Response:
    return JSONResponse({"error": f"the parameter {name!r} should be a number from 0 to {LARGEST_VERSION}"}, 422)
