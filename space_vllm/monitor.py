"""The monitor in the Space's own server: its bucket, and itself as the one replica, without asking over HTTP.

The page is there from the first moment on; it knows of nothing before `start`.
"""

from collections.abc import Callable

from fastapi import FastAPI
from starlette.responses import RedirectResponse, Response

from shared.bucket import open_bucket
from shared.errors import BucketError
from shared.login import Login
from shared.monitor.app import PATH, build, mount
from shared.monitor.poller import Poller, Units
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer
from shared.types import Json
from space_vllm.settings import Settings

NAME = "This replica"


class Itself:
    """What the Space would answer about itself."""

    def __init__(self, status: Callable[[], Json]) -> None:
        self._status = status

    def ask(self) -> Answer:
        return Answer(self._status())


class SpaceMonitor:
    """Ends with the process: its thread waits for nothing that must not be cut off."""

    def __init__(self) -> None:
        self._poller: Poller | None = None
        self._problem = ""
        self._bucket = ""

    def mount(self, app: FastAPI, login: Login | None) -> None:
        """The page under /monitor/, open or behind the login. `/favicon.ico` is asked for by browsers."""
        app.add_api_route("/favicon.ico", _icon, methods=["GET"], include_in_schema=False)
        mount(app, build(self.look), login)

    def start(self, settings: Settings, status: Callable[[], Json]) -> None:
        """A bucket that cannot be opened is a sentence on the page: the Space itself has its own way to tell."""
        self._bucket = settings.bucket
        try:
            bucket = open_bucket(settings.bucket, settings.hf_token)
        except BucketError as error:
            self._problem = str(error)
            return
        self._poller = Poller(bucket, settings.run_id, Units({NAME: Itself(status)}))
        self._poller.__enter__()

    def look(self, run_id: str, version: int | None) -> Snapshot:
        if self._poller is not None:
            return self._poller.look(run_id, version)
        return Snapshot(self._bucket or "of this Space", problem=self._problem)


async def _icon() -> Response:
    return RedirectResponse(f"{PATH}/favicon.ico")
