"""`python -m shared.monitor --bucket B`: the monitor alone. Settings: BUCKET, RUN_ID, PORT (7860), HOST (127.0.0.1).

Knows arguments, the port and the keys; VLLM_API_KEY, ENV_API_KEY, HF_TOKEN, and MONITOR_USER with MONITOR_PASSWORD for
a login, come from the environment only.
"""

import argparse
import errno
import os
import socket
import string
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, RedirectResponse

from shared.auth import is_address
from shared.bucket import LOCAL, Bucket, open_bucket
from shared.errors import BucketError, SyncError
from shared.login import Login
from shared.monitor.app import PATH, build, mount
from shared.monitor.poller import Poller, Units
from shared.monitor.units import Unit

_LETTERS = string.ascii_uppercase


def build_app(poller: Poller, login: Login | None = None) -> FastAPI:
    """`/` redirects to the page, `/favicon.ico` to Gradio's; `/health` is 200 while the poller runs."""
    app = FastAPI(openapi_url=None)

    @app.get("/")
    async def root() -> RedirectResponse:
        return RedirectResponse(f"{PATH}/")

    @app.get("/favicon.ico")
    async def icon() -> RedirectResponse:
        return RedirectResponse(f"{PATH}/favicon.ico")

    @app.get("/health")
    async def health() -> PlainTextResponse:
        return PlainTextResponse("ok\n") if poller.alive() else PlainTextResponse("the poller has ended\n", 503)

    mount(app, build(poller.look), login)
    return app


def units_of(vllm_urls: Sequence[str], env_url: str | None, env: Mapping[str, str]) -> Units:
    """The replicas are named by letters, in the order of their addresses."""
    token, key = env.get("HF_TOKEN", ""), env.get("VLLM_API_KEY", "")
    replicas = {
        f"Replica {letter}": Unit(url, "/weights/status", key, token)
        for letter, url in zip(_LETTERS, vllm_urls, strict=False)
    }
    environment = Unit(env_url, "/status", env.get("ENV_API_KEY", ""), token) if env_url else None
    return Units(replicas, environment)


def existing(name: str, token: str | None) -> Bucket:
    """The bucket, which the monitor never makes. Raises BucketError where a folder is not there."""
    folder = Path(name.removeprefix(LOCAL)).expanduser()
    if name.startswith(LOCAL) and not folder.is_dir():
        raise BucketError(f"cannot use bucket {name}: there is no folder {folder}; give that of a run's bucket")
    return open_bucket(name, token)


def bind(host: str, port: int) -> socket.socket:
    """The socket to serve on, bound now. OSError with a sentence when that is not possible."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "it is already in use; stop the program that uses it" if taken else str(error.strerror)
        raise OSError(f"cannot listen on port {port} of {host}: {reason}, or choose another with --port") from error
    return listener


def parse(argv: Sequence[str], env: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shared.monitor", description="A read-only page over one bucket.")
    parser.add_argument("--bucket", default=env.get("BUCKET"), help="local:/path or user/name; default: BUCKET")
    parser.add_argument(
        "--vllm-url",
        type=_url,
        action="append",
        default=[],
        help="a vLLM Space that is asked; may be repeated",
    )
    parser.add_argument("--env-url", type=_url, help="the environment that is asked")
    parser.add_argument("--port", type=_port, default=env.get("PORT", "7860"), help="default: PORT, or 7860")
    arguments = parser.parse_args(argv)
    if not arguments.bucket:
        parser.error("no bucket: give --bucket or set BUCKET")
    if (count := len(arguments.vllm_url)) > len(_LETTERS):
        parser.error(f"{count} times --vllm-url: no more than {len(_LETTERS)} replicas can be shown")
    return arguments


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    arguments, host = parse(argv, env), env.get("HOST", "127.0.0.1")
    try:
        bucket = existing(arguments.bucket, env.get("HF_TOKEN"))
        login = Login.from_environment(env)
        units = units_of(arguments.vllm_url, arguments.env_url, env)
        listener = bind(host, arguments.port)
    except (SyncError, OSError, ValueError) as error:
        print(f"monitor: {error}", file=sys.stderr)
        return 1
    with Poller(bucket, env.get("RUN_ID") or None, units) as poller, suppress(KeyboardInterrupt):
        config = uvicorn.Config(
            build_app(poller, login), log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
        print(f"monitor: http://{host}:{arguments.port}{PATH}/", flush=True)
        uvicorn.Server(config).run(sockets=[listener])
    return 0


def _url(text: str) -> str:
    if not is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as http://host:port")
    return text


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
