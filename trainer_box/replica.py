"""The vLLM Space as the trainer sees it: the single place that knows its HTTP interface, and who it says it is.

Knows nothing of weights; the rollouts' own requests are made by TRL, with the headers from here.
"""

import os
import time
from dataclasses import dataclass

import httpx

from shared.auth import auth_headers
from shared.errors import SyncError
from shared.types import Json, Manifest

_CONNECT_S = 10.0
_POLL_S = 2.0


def vllm_headers(url: str) -> dict[str, str]:
    """What every request to the vLLM Space carries, from the environment."""
    return auth_headers(url, os.environ.get("VLLM_API_KEY"), os.environ.get("HF_TOKEN"))


@dataclass(frozen=True)
class Acknowledgement:
    """A version is live and verified. Milliseconds; zero for a version that was live already."""

    version: int
    stage_ms: float
    pause_ms: float
    apply_ms: float


class Replica:
    """Raises SyncError with a sentence whenever the Space does not do what was asked."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise SyncError(f"the address of vLLM should look like http://host:port, not {url!r}; set --vllm-url")
        try:
            self._client = httpx.Client(
                base_url=self.url, headers=vllm_headers(self.url), timeout=_CONNECT_S, trust_env=False
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise SyncError(f"{url!r} is not an address: {error}; set --vllm-url") from error

    def wait_until_healthy(self, deadline_s: float) -> None:
        """Return when `/health` answers 200. Raises SyncError after `deadline_s` seconds, or when it never will."""
        end = time.monotonic() + deadline_s
        while True:
            reason = self._unhealthy()
            if not reason:
                return
            if time.monotonic() > end:
                raise SyncError(f"vLLM at {self.url} is not ready after {deadline_s:.0f} s ({reason}); is it running?")
            time.sleep(_POLL_S)

    def status(self) -> Json:
        return self._json(self._request("/weights/status"))

    def served_models(self) -> list[str]:
        return [model["id"] for model in self._json(self._request("/v1/models"))["data"]]

    def update(self, bucket: str, manifest: Manifest, deadline_s: float) -> Acknowledgement:
        """Announce a version and wait until it is live and verified, `deadline_s` seconds at most.

        An answer that is lost or says "under way" is resolved by asking again: a version is applied once however often
        it is announced.
        """
        message = {
            "repo_id": bucket,
            "filename": manifest.path,
            "version": manifest.version,
            "run_id": manifest.run_id,
        }
        end = time.monotonic() + deadline_s
        while True:
            outcome = self._announce(message)
            if isinstance(outcome, Acknowledgement):
                return outcome
            if time.monotonic() > end:
                raise SyncError(
                    f"vLLM at {self.url} does not serve version {manifest.version} after {deadline_s:.0f} s: {outcome}"
                )
            time.sleep(_POLL_S / 4)

    def _announce(self, message: Json) -> Acknowledgement | str:
        """The acknowledgement, or why there is none yet. Raises SyncError when asking again cannot help."""
        try:
            response = self._client.post(
                "/weights/update", json=message, timeout=httpx.Timeout(30, connect=_CONNECT_S)
            )
        except httpx.HTTPError as error:
            return _reason(error)
        if response.status_code == 200:
            body = self._json(response)
            return Acknowledgement(message["version"], body["stage_ms"], body["pause_ms"], body["apply_ms"])
        if response.status_code in (202, 502, 503, 504):
            return f"HTTP {response.status_code} {_detail(response)}"
        raise SyncError(
            f"vLLM at {self.url} refused version {message['version']} of run {message['run_id']!r}: "
            f"HTTP {response.status_code} {_detail(response)}"
        )

    def _unhealthy(self) -> str:
        try:
            response = self._client.get("/health")
        except httpx.HTTPError as error:
            return _reason(error)
        if response.status_code in (401, 403, 404):
            raise SyncError(
                f"vLLM at {self.url} answered HTTP {response.status_code} on /health; is this a vLLM Space, and if it "
                "is a private one, is HF_TOKEN set?"
            )
        return "" if response.status_code == 200 else f"HTTP {response.status_code}"

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
        try:
            answer: Json = response.json()
        except ValueError as error:
            raise SyncError(f"{response.url.path} of vLLM at {self.url} did not answer with JSON") from error
        return answer


def _reason(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _detail(response: httpx.Response) -> str:
    return " ".join(response.text.split())[:300]
