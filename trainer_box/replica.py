"""The vLLM Space as the trainer sees it: the single place that knows its HTTP interface, and who it says it is.

Knows nothing of weights; the rollouts' own requests are made by TRL.
"""

import sys
from dataclasses import dataclass

import httpx

from shared import health, strict_json
from shared.auth import is_address
from shared.document import Document
from shared.errors import IntegrityError, SyncError
from shared.health import Report
from shared.output import say
from shared.types import FINGERPRINT, LARGEST_VERSION, RUN_ID, Json, Manifest
from trainer_box.headers import vllm_headers

_CONNECT_S = 10.0
_ANSWER_S = 30.0  # the Space says after 20 s that a version is under way
_STATUS = "/weights/status"
_TIMES = ("stage_ms", "pause_ms", "apply_ms")
_SERVING = ("serving", "staging", "applying")  # states in which what the status tells is what is answered from


@dataclass(frozen=True)
class Acknowledgement:
    """A version is live and verified. Milliseconds; zero for a version that was live already."""

    version: int
    stage_ms: float
    pause_ms: float
    apply_ms: float


@dataclass(frozen=True)
class Pending:
    """Not acknowledged yet, for a reason that may pass by itself; or the Space is at it."""

    reason: str
    is_under_way: bool = False


class NeedsAnchorError(SyncError):
    """No path leads the Space to the version; an anchor may."""


class Replica:
    """Raises SyncError with a sentence whenever the Space does not do what was asked."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._hint = f"check that {self.url} is the address of the vLLM Space, and HF_TOKEN if that is a private one"
        if not is_address(url):
            raise SyncError(f"the address of vLLM should look like http://host:port, not {url!r}; set --vllm-url")
        self._client = httpx.Client(
            base_url=self.url, headers=vllm_headers(self.url), timeout=_CONNECT_S, trust_env=False
        )

    def wait_until_healthy(self, deadline_s: float, report: Report = say) -> None:
        """Return when `/health` answers 200. Raises SyncError after `deadline_s` seconds, or when it never will."""
        health.wait(f"vLLM at {self.url}", self.problem, deadline_s, report)

    def problem(self) -> str:
        """Empty while `/health` is 200, else what is wrong. Raises SyncError for what waiting does not change."""
        found = health.problem_of(self.url, vllm_headers(self.url))
        if found.startswith(("HTTP 401", "HTTP 403")):
            raise SyncError(
                f"vLLM at {self.url} answered {found[:8]} on /health; is this a vLLM Space, and if it is a private "
                "one, is HF_TOKEN set?"
            )
        return found

    def status(self) -> Json:
        return self._json(self._request(_STATUS))

    def served_models(self) -> list[str]:
        return [model.text("id") for model in self._models()]

    def longest_row(self, model: str) -> int:
        """The most tokens that a prompt and its completion have together."""
        return next(one.count("max_model_len") for one in self._models() if one.text("id") == model)

    def update(self, bucket: str, manifest: Manifest) -> Acknowledgement | Pending:
        """Announce a version once, and wait half a minute at most for it to be live and verified.

        A version is applied once however often it is announced. An answer that is lost, or that does not tell the
        fingerprint, leaves open what happened: then the status is asked. Raises NeedsAnchorError, or SyncError when
        announcing it again cannot help, such as when other weights than the published ones are live as this version.
        """
        message = {
            "repo_id": bucket,
            "filename": manifest.path,
            "version": manifest.version,
            "run_id": manifest.run_id,
        }
        try:
            response = self._client.post(
                "/weights/update", json=message, timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return Pending(_reason(error))
        except httpx.HTTPError as error:
            return self._look_up(manifest) or Pending(_reason(error))
        told = f"HTTP {response.status_code} {_detail(response)}"
        if response.status_code == 200:
            answer = {"run_id": manifest.run_id, **_parsed(response)}  # it is about the run that was announced
            return self._acknowledged(manifest, answer, answer) or self._look_up(manifest) or Pending(told)
        if response.status_code == 202:
            return Pending(told, is_under_way=True)
        if response.status_code == 404:  # a proxy's, while the Space is built or restarts
            return Pending(f"{told}; {self._hint}")
        if response.status_code in (408, 429) or response.status_code >= 500:
            return Pending(told)
        kind = NeedsAnchorError if response.status_code == 409 else SyncError
        raise kind(f"vLLM at {self.url} refused version {manifest.version} of run {manifest.run_id!r}: {told}")

    def _look_up(self, manifest: Manifest) -> Acknowledgement | None:
        """What the status says of the version."""
        try:
            status = _parsed(self._client.get(_STATUS))
        except httpx.HTTPError:
            return None
        if status.get("state") not in _SERVING:
            return None
        times = status.get("last_sync")
        return self._acknowledged(manifest, status, times if isinstance(times, dict) else {})

    def _acknowledged(self, manifest: Manifest, told: Json, times: Json) -> Acknowledgement | None:
        """None unless the Space tells, in a form that can be believed, that the version or a later one is live.

        Raises SyncError when the version is live with other weights than were published.
        """
        try:
            live = Document(told, self.url)
            run_id, version = live.text("run_id", RUN_ID), live.version("version", LARGEST_VERSION)
            found, spent = live.text("fingerprint", FINGERPRINT), _times(times)
        except IntegrityError:
            return None
        if run_id != manifest.run_id or version < manifest.version:
            return None
        if version > manifest.version:
            return Acknowledgement(manifest.version, 0, 0, 0)
        if found != manifest.fingerprint:
            raise SyncError(
                f"vLLM at {self.url} serves version {version} of run {run_id!r} with fingerprint {found}, published "
                f"was {manifest.fingerprint}: the run was begun anew, or its files were changed; restart the Space, "
                "or choose another --run-id"
            )
        return Acknowledgement(version, **spent)

    def _models(self) -> list[Document]:
        path = "/v1/models"
        return [Document(model, path) for model in Document(self._json(self._request(path)), path).array("data")]

    def _request(self, path: str) -> httpx.Response:
        try:
            response = self._client.get(path)
        except httpx.HTTPError as error:
            raise SyncError(f"vLLM at {self.url} cannot be reached: {_reason(error)}") from error
        if response.status_code in (401, 403):
            raise SyncError(
                f"vLLM at {self.url} refused the key (HTTP {response.status_code}); set VLLM_API_KEY to its key"
            )
        if response.status_code != 200:
            raise SyncError(
                f"{path} of vLLM at {self.url} answered HTTP {response.status_code}; is this a vLLM Space?"
            )
        return response

    def _json(self, response: httpx.Response) -> Json:
        answer = _parsed(response)
        if not answer:
            raise SyncError(f"{response.url.path} of vLLM at {self.url} did not answer with JSON")
        return answer


def _parsed(response: httpx.Response) -> Json:
    """The JSON object of an answer; empty for anything else, such as a proxy's page."""
    try:
        answer = strict_json.parse(response.content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _times(told: Json) -> dict[str, float]:
    """Zero for what is not told. Raises IntegrityError for what is no time."""
    times = Document({"times": {name: told.get(name, 0) for name in _TIMES}}, "the answer").numbers("times")
    if not all(0 <= value <= sys.float_info.max for value in times.values()):
        raise IntegrityError(f"{times} are no times")
    return {name: float(value) for name, value in times.items()}


def _reason(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _detail(response: httpx.Response) -> str:
    return " ".join(response.text.split())[:300]
