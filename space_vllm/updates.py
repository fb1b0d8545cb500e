"""`POST /weights/update`: one message in, one answer out. Decides statuses and bodies; moves no weights itself."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse

from shared.errors import SyncError
from shared.types import LARGEST_VERSION, RUN_ID
from space_vllm.advance import FATAL
from space_vllm.reconciler import Reconciler
from space_vllm.requests import OlderRunError, Request
from space_vllm.settings import Settings
from space_vllm.space import Door


class UpdateMessage(BaseModel):
    """Which version is whole in the bucket. `filename` is the path of its data file, empty when it has none."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    repo_id: str
    filename: str
    version: int = Field(ge=0, le=LARGEST_VERSION)
    run_id: str = Field(pattern=f"^{RUN_ID.pattern}$")


class Updates:
    def __init__(self, settings: Settings, reconciler: Reconciler, door: Door) -> None:
        self._settings = settings
        self._reconciler = reconciler
        self._door = door

    async def answer(self, body: bytes, seconds: float) -> JSONResponse:
        """Waits at most `seconds` for the version to be live and verified."""
        try:
            message = UpdateMessage.model_validate_json(body)
        except ValidationError as error:
            return self._refuse(422, _explain(error))
        if (reason := self._foreign(message)) is not None:
            return self._refuse(403, reason)
        request = Request(message.run_id, message.version, message.filename)
        if await self._reconciler.already_serves(request):
            return self._done()
        self._reconciler.ask(request)
        await self._reconciler.status.until(lambda: self._is_decided(request), seconds)
        return self._outcome(request)

    def _foreign(self, message: UpdateMessage) -> str | None:
        if message.repo_id != self._settings.bucket:
            return f"this Space follows bucket {self._settings.bucket!r}, not {message.repo_id!r}; change BUCKET"
        if self._settings.run_id not in (None, message.run_id):
            return f"this Space follows run {self._settings.run_id!r} only, not {message.run_id!r}; unset RUN_ID"
        return None

    def _is_decided(self, request: Request) -> bool:
        return request.is_answered or self._reconciler.serves(request)

    def _outcome(self, request: Request) -> JSONResponse:
        if self._reconciler.serves(request):
            return self._done()
        if not request.is_answered:
            state = self._reconciler.status.state
            return JSONResponse({"version": request.version, "state": state, **self._served()}, 202)
        return self._failed(request.error or self._passed_over(request))

    def _passed_over(self, request: Request) -> SyncError:
        """Why an attempt that went well did not lead to the request's version."""
        return OlderRunError(f"run {request.run_id!r} gave way to a newer one before version {request.version}")

    def _done(self) -> JSONResponse:
        sync, served = self._reconciler.status.last_sync, self._reconciler.status.served
        assert sync is not None and served is not None
        times = {"pause_ms": sync.pause_ms, "stage_ms": sync.stage_ms, "apply_ms": sync.apply_ms}
        return JSONResponse({"version": sync.version, "kind": sync.kind, "fingerprint": served.fingerprint, **times})

    def _failed(self, error: SyncError) -> JSONResponse:
        if isinstance(error, OlderRunError):
            return self._refuse(403, str(error))
        if isinstance(error, FATAL):
            return self._refuse(503, str(error))
        return JSONResponse({"error": str(error), **self._served(), "need": "anchor"}, 409)

    def _refuse(self, status: int, sentence: str) -> JSONResponse:
        return JSONResponse({"error": sentence, **self._served()}, status)

    def _served(self) -> dict[str, Any]:
        return {"served_version": self._reconciler.status.version}


def _explain(error: ValidationError) -> str:
    places = (f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors())
    return f"the message is malformed: {'; '.join(places)}"
