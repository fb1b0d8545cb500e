"""huggingface_hub's HTTP client, made to end: by itself it has no timeout, and it repeats calls as a server likes.

Only calls with a deadline are changed; others in the process go on as huggingface_hub has them.
"""

import functools
import os
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub.utils._http import hf_request_event_hook
from huggingface_hub.utils.tqdm import disable_progress_bars

_SOME_FAILED = 422  # of a batch; which ones is in the body, for huggingface_hub to read

_end: ContextVar[float | None] = ContextVar("end of the call", default=None)


def connect(token: str | None) -> huggingface_hub.HfApi:
    _prepare()
    # Read here, since huggingface_hub reads it once, at import.
    return huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)


@contextmanager
def ending_in(seconds: float) -> Iterator[None]:
    """In this thread, requests to the Hub raise TimeoutError after `seconds`, however many bytes come until then.

    None is sent after that, and none is repeated: a status from 400 on raises httpx2.HTTPStatusError.
    """
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
    client = _TimedClient(event_hooks={"request": [hf_request_event_hook]}, follow_redirects=True, timeout=None)
    # httpx2 has no public place for it. The mounts are proxies, None where there is to be none.
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx2.HTTPTransport):
            pool: Any = transport._pool
            pool._network_backend = _TimedNetwork(pool._network_backend)
    return client


class _TimedClient(httpx2.Client):
    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        left = _left()  # a call that is given up must not take effect later
        if left is None:
            return super().send(request, **options)
        request.extensions["timeout"] = httpx2.Timeout(left).as_dict()
        try:
            response = super().send(request, **options)
        except httpx2.TimeoutException as error:
            raise TimeoutError("out of time") from error
        except httpx2.TransportError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        if response.is_error and response.status_code != _SOME_FAILED:
            response.raise_for_status()
        return response


class _TimedNetwork:
    """A network backend of httpcore2, whose own timeouts begin anew with each byte that comes."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *rest: Any, **more: Any
    ) -> "_TimedStream":
        return _TimedStream(self._network.connect_tcp(host, port, _left() or timeout, *rest, **more))

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


class _TimedStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        content: bytes = self._stream.read(max_bytes, _left() or timeout)
        return content

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left() or timeout)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "_TimedStream":
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, _left() or timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()


def _left() -> float | None:
    """Seconds until the end of the call; None without an end. Raises TimeoutError when there is no time left."""
    end = _end.get()
    if end is None:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("out of time")
    return left
