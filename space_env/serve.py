"""`python -m space_env.serve`: the environment as one process. Settings: PORT (7860), HOST (0.0.0.0), ENV_API_KEY.

Knows ports, proxies and time limits of connections. A client that is gone without a word is noticed in three ways: it
answers no ping, its kernel acknowledges nothing, or it takes none of what is sent to it. Each ends the connection, and
so frees its session; OpenEnv's own idle reaper stays off, because it takes the places of live sessions. A connection
that asks for nothing ends too.
"""

import errno
import ipaddress
import os
import resource
import socket
import sys
from collections.abc import Mapping

import uvicorn
from fastapi import FastAPI

from shared.auth import bearer
from shared.errors import SyncError
from space_env.app import build_app
from space_env.connections import GameConnection, HttpConnection
from space_env.messages import MAX_BYTES
from space_env.sessions import CAPACITY, Desk

PING_S = 20.0
REQUEST_S = 20
BACKLOG = 2048
_PRIVATE_V4 = ["127.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"]
_V4_IN_V6 = [f"::ffff:{net.network_address}/{96 + net.prefixlen}" for net in map(ipaddress.IPv4Network, _PRIVATE_V4)]
PROXIES = [*_PRIVATE_V4, *_V4_IN_V6, "::1", "fc00::/7"]
"""Whom to believe when they say on whose behalf they ask: addresses that nobody has on the Internet."""


def port_from(env: Mapping[str, str]) -> int:
    """ValueError when PORT is not a port number."""
    text = env.get("PORT", "7860")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ValueError(f"PORT is {text!r}; set it to a number from 1 to 65535")
    return int(text)


def key_from(env: Mapping[str, str]) -> str | None:
    """None without one. SyncError, which does not tell it, when ENV_API_KEY can be in no header."""
    key = env.get("ENV_API_KEY")
    if key:
        bearer(key, "ENV_API_KEY")
    return key or None


def bind(host: str, port: int, unread_s: float = 2 * PING_S) -> socket.socket:
    """The socket to serve on, bound now; `::` is every address, of IPv4 too. OSError with a sentence when that is not
    possible.

    Connections end after `unread_s` seconds in which the other side took nothing of what waits for it.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(
            address, family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6 and host == "::"
        )
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "it is already in use; stop the program that uses it" if taken else str(error.strerror)
        raise OSError(f"cannot listen on port {port} of {host}: {why}, or set PORT and HOST") from error
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * unread_s))
    return listener


def server_of(served: FastAPI, ping_s: float = PING_S, request_s: int = REQUEST_S) -> uvicorn.Server:
    """Frames are too small to gain from compression, which would cost memory for every session. A connection without a
    session may be without a whole request for `request_s` seconds."""
    config = uvicorn.Config(
        served,
        log_level="warning",
        access_log=False,
        forwarded_allow_ips=PROXIES,
        http=HttpConnection,
        timeout_keep_alive=request_s,
        ws=GameConnection,
        ws_max_size=MAX_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=ping_s,
        ws_ping_timeout=ping_s,
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)


def app() -> FastAPI:
    """The app as the environment's settings have it, for an ASGI server of one's own. Messages over the limit are then
    refused after they were read, unless it is told (`--ws-max-size 16384`), and connections have its limits."""
    return build_app(key_from(os.environ), Desk())


def allow_many_files() -> None:
    """Every connection is an open file, and the usual limit is 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> int:
    host = os.environ.get("HOST", "0.0.0.0")
    try:
        port = port_from(os.environ)
        key_from(os.environ)
        listener = bind(host, port)
    except (ValueError, OSError, SyncError) as error:
        print(f"space_env: {error}", file=sys.stderr)
        return 1
    allow_many_files()
    server = server_of(app())
    shown = f"[{host}]" if ":" in host else host
    print(f"space_env: listening on {shown}:{port}, at most {CAPACITY} sessions", flush=True)
    server.run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
