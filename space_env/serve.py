"""`python -m space_env.serve`: the environment as one process. Settings: PORT (7860), HOST (0.0.0.0), ENV_API_KEY.

Knows ports, proxies and time limits of connections. A client that is gone without a word is noticed in three ways: it
answers no ping, its kernel acknowledges nothing, or it takes none of what is sent to it. Each ends the connection, and
so frees its session; OpenEnv's own idle reaper stays off, because it takes the places of live sessions.
"""

import errno
import os
import socket
import sys
from collections.abc import Mapping

import uvicorn
from fastapi import FastAPI

from space_env.app import build_app
from space_env.gate import MAX_MESSAGE_BYTES
from space_env.sessions import CAPACITY, Desk

PING_S = 20.0
BACKLOG = 2048
PROXIES = ["127.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "::1", "fc00::/7"]
"""Whom to believe when they say on whose behalf they ask: addresses that nobody has on the Internet."""


def port_from(env: Mapping[str, str]) -> int:
    """ValueError when PORT is not a port number."""
    text = env.get("PORT", "7860")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ValueError(f"PORT is {text!r}; set it to a number from 1 to 65535")
    return int(text)


def bind(host: str, port: int, unread_s: float = 2 * PING_S) -> socket.socket:
    """The socket to serve on, bound now. OSError with a sentence when that is not possible.

    Connections end after `unread_s` seconds in which the other side took nothing of what waits for it.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * unread_s))
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        why = "it is already in use; stop the program that uses it" if taken else str(error.strerror)
        raise OSError(f"cannot listen on port {port} of {host}: {why}, or set PORT and HOST") from error
    return listener


def server_of(served: FastAPI, ping_s: float = PING_S) -> uvicorn.Server:
    """Frames are too small to gain from compression, which would cost memory for every session."""
    config = uvicorn.Config(
        served,
        log_level="warning",
        access_log=False,
        forwarded_allow_ips=PROXIES,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=ping_s,
        ws_ping_timeout=ping_s,
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)


def app() -> FastAPI:
    """The app as the environment's settings have it, for an ASGI server of one's own, which then sets the limits."""
    return build_app(os.environ.get("ENV_API_KEY"), Desk())


def main() -> int:
    host = os.environ.get("HOST", "0.0.0.0")
    try:
        port = port_from(os.environ)
        listener = bind(host, port)
    except (ValueError, OSError) as error:
        print(f"space_env: {error}", file=sys.stderr)
        return 1
    server = server_of(app())
    print(f"space_env: listening on {host}:{port}, at most {CAPACITY} sessions", flush=True)
    server.run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
