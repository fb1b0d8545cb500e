"""Middleware that writes down every route of the running server, for tests that walk them all."""

import json
import os
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

_VARIABLE = "ROUTE_LIST"
ARGUMENTS = ("--middleware", "tests.space_vllm.route_list.RouteList")


@dataclass(frozen=True)
class Listed:
    """`methods` is empty for a WebSocket. What is mounted counts as one route, which takes GET and POST."""

    path: str
    methods: tuple[str, ...]


def environment(folder: Path) -> dict[str, str]:
    return {_VARIABLE: str(folder / "routes.json")}


def listed_in(folder: Path) -> list[Listed]:
    """Of a server that has been asked something."""
    return [Listed(one["path"], tuple(one["methods"])) for one in json.loads((folder / "routes.json").read_text())]


class RouteList:
    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._file = Path(os.environ[_VARIABLE])
        self._is_written = False

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not self._is_written:
            self._file.write_text(json.dumps([asdict(one) for one in _listed(scope["app"].routes)]))
            self._is_written = True
        await self._app(scope, receive, send)


def _listed(routes: list[BaseRoute], before: str = "") -> Iterator[Listed]:
    for route in routes:
        match route:
            case WebSocketRoute():
                yield Listed(before + route.path, ())
            case Route():
                yield Listed(before + route.path, tuple(sorted(route.methods or ())))
            case Mount():
                yield Listed(before + route.path, ("GET", "POST"))
                yield from _listed(route.routes, before + route.path)
            case _:
                raise TypeError(f"{route!r} is a route of an unknown kind")
