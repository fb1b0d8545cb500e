"""huggingface_hub's HTTP client, made to end: by itself it has no timeout, and it repeats calls as a server likes.

Only calls with a deadline are changed; others in the process go on as huggingface_hub has them.
"""

import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub import hf_raise_for_status
from huggingface_hub.utils._http import hf_request_event_hook
from huggingface_hub.utils.tqdm import disable_progress_bars

REPEATED = (408, 429, 500, 502, 503, 504)  # what huggingface_hub would ask again, each time after a wait

_end: ContextVar[float | None] = ContextVar("end of the call", default=None)


def connect(token: str | None) -> huggingface_hub.HfApi:
    _prepare()
    # Read here, since huggingface_hub reads it once, at import.
    return huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)


@contextmanager
def ending_in(seconds: float) -> Iterator[None]:
    """In this thread, requests to the Hub time out in `seconds`, none is sent after that, and none is repeated."""
    token = _end.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


@functools.cache
def _prepare() -> None:
    huggingface_hub.set_client_factory(_client)
    disable_progress_bars()  # a bar per pointer that is read


def _client() -> httpx2.Client:
    return _TimedClient(event_hooks={"request": [hf_request_event_hook]}, follow_redirects=True, timeout=None)


class _TimedClient(httpx2.Client):
    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        end = _end.get()
        if end is None:
            return super().send(request, **options)
        left = end - time.monotonic()
        if left <= 0:  # a call that is given up must not take effect later
            raise TimeoutError("out of time")
        request.extensions["timeout"] = httpx2.Timeout(left).as_dict()
        try:
            response = super().send(request, **options)
        except httpx2.TimeoutException as error:
            raise TimeoutError("out of time") from error
        except httpx2.TransportError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        if response.status_code in REPEATED:
            hf_raise_for_status(response)
        return response
