"""`python -m space_env.serve`: the environment as one process. Settings: PORT (7860), HOST (0.0.0.0), ENV_API_KEY.

Knows ports, capacity and the key; the game is elsewhere. A session that stays idle is dropped by the WebSocket's own
pings, because OpenEnv's idle reaper takes the slot of live sessions.
"""

import errno
import os
import socket
import sys
from collections.abc import Mapping

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import HTTPEnvServer

from space_env.auth import RequireKey
from space_env.environment import WordleEnvironment
from space_env.models import WordleAction, WordleObservation, WordleState

MAX_SESSIONS = 256
MAX_MESSAGE_BYTES = 64 * 1024


def build_app(api_key: str | None = None, max_sessions: int = MAX_SESSIONS) -> FastAPI:
    """OpenEnv's routes, `GET /status` with the open and possible sessions, and the key in front of both."""
    app = FastAPI(title="Wordle environment")
    server = HTTPEnvServer(
        WordleEnvironment,
        WordleAction,
        WordleObservation,
        max_concurrent_envs=max_sessions,
        env_name="wordle",
        state_cls=WordleState,
    )

    @app.get("/status")
    async def status() -> dict[str, int]:
        return {"active": server.active_sessions, "max": server.max_concurrent_envs}

    server.register_routes(app)
    if api_key:
        app.add_middleware(RequireKey, key=api_key)
    return app


def port_from(env: Mapping[str, str]) -> int:
    """ValueError when PORT is not a port number."""
    text = env.get("PORT", "7860")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ValueError(f"PORT is {text!r}; set it to a number from 1 to 65535")
    return int(text)


def bind(host: str, port: int) -> socket.socket:
    """The socket to serve on, bound now. OSError with a sentence when that is not possible."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(MAX_SESSIONS)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        why = "it is already in use; stop the program that uses it" if taken else str(error.strerror)
        raise OSError(f"cannot listen on port {port} of {host}: {why}, or set PORT and HOST") from error
    return listener


def server_of(app: FastAPI) -> uvicorn.Server:
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, ws_max_size=MAX_MESSAGE_BYTES, timeout_graceful_shutdown=3
    )
    return uvicorn.Server(config)


def main() -> int:
    host = os.environ.get("HOST", "0.0.0.0")
    try:
        port = port_from(os.environ)
        listener = bind(host, port)
    except (ValueError, OSError) as error:
        print(f"space_env: {error}", file=sys.stderr)
        return 1
    server = server_of(build_app(os.environ.get("ENV_API_KEY")))
    print(f"space_env: listening on {host}:{port}, at most {MAX_SESSIONS} sessions", flush=True)
    server.run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
