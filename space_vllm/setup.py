"""A Space that is not set up yet: a page that lists what is missing and where to put it right, until nothing is.

Everything is closed meanwhile: whoever asks for weights or completions is told 503. It runs in vLLM's place, on its
port, and ends before vLLM starts. Knows no checks, only what they found.
"""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from shared.output import complain
from space_vllm.settings import Place, SettingError, Settings

PERIOD_S = 30
_STOP_S = 10.0
_HUB = "https://huggingface.co"
_ENDING = (signal.SIGTERM, signal.SIGINT)
_PAGE = jinja2.Template(Path(__file__).with_name("setup.html").read_text(encoding="utf-8"), autoescape=True)


@dataclass(frozen=True)
class Link:
    text: str
    url: str


class SetupPage:
    """What was found last, as a page and as sentences."""

    def __init__(self, settings: Settings, space_id: str) -> None:
        self._settings, self._space_id = settings, space_id
        self._problems: Sequence[SettingError] = []
        self._checked_at = ""

    def note(self, problems: Sequence[SettingError]) -> None:
        """Told in the log too, when it is something else than before."""
        if list(map(str, problems)) != list(map(str, self._problems)):
            for problem in problems:
                complain(f"this Space is not set up yet: {problem}")
        self._problems, self._checked_at = problems, f"{datetime.now(UTC):%H:%M:%S}"

    def app(self) -> Starlette:
        anything = Route("/{path:path}", self._closed, methods=["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
        return Starlette(routes=[Route("/", self._page), Route("/monitor/", self._page), anything])

    def links(self, problem: SettingError) -> list[Link]:
        return [self._link(place) for place in problem.places]

    async def _page(self, request: Request) -> Response:
        values = {"problems": self._problems, "links": self.links, "period": PERIOD_S}
        values["checked_at"] = self._checked_at
        return HTMLResponse(_PAGE.render(values))

    async def _closed(self, request: Request) -> Response:
        told = " ".join(str(problem) for problem in self._problems)
        return JSONResponse({"error": f"this Space is not set up yet: {told}"}, 503, {"Retry-After": str(PERIOD_S)})

    def _link(self, place: Place) -> Link:
        match place:
            case Place.SETTINGS:
                return Link("This Space's settings", f"{_HUB}/spaces/{self._space_id}/settings")
            case Place.TOKENS:
                return Link("Your tokens", f"{_HUB}/settings/tokens")
            case Place.BUCKET:
                return Link(f"Bucket {self._settings.bucket}", f"{_HUB}/buckets/{self._settings.bucket}")
            case Place.MODEL:
                return Link(f"Model {self._settings.model}", f"{_HUB}/{self._settings.model}")


def wait_until_set_up(
    settings: Settings, space_id: str, look: Callable[[], Sequence[SettingError]], period_s: float = PERIOD_S
) -> bool:
    """True once `look` finds nothing wrong; False when this process was told to end before. Raises OSError."""
    with _interrupting():
        try:
            if problems := look():
                _serve_until_set_up(SetupPage(settings, space_id), settings, problems, look, period_s)
        except KeyboardInterrupt:
            return False
    return True


def _serve_until_set_up(
    page: SetupPage,
    settings: Settings,
    problems: Sequence[SettingError],
    look: Callable[[], Sequence[SettingError]],
    period_s: float,
) -> None:
    page.note(problems)
    with _served(page.app(), settings.host, settings.port):
        while problems:
            time.sleep(period_s)
            problems = look()
            page.note(problems)
    complain("this Space is set up now")


@contextmanager
def _interrupting() -> Iterator[None]:
    """The signals that end a process end what it waits for, too: a look may take minutes."""
    before = [(number, signal.signal(number, signal.default_int_handler)) for number in _ENDING]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _served(app: Starlette, host: str, port: int) -> Iterator[None]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    with socket.create_server((host, port), family=family) as listener:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(_STOP_S)
