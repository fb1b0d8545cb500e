"""The rollouts' requests to the vLLM Space: with its key, final when it refuses them, patient while it is away.

Knows HTTP; nothing of prompts, and nothing of who asks. Runs in the rollout child.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

import aiohttp

from shared.errors import SyncError
from shared.types import Json
from trainer_box.replica import vllm_headers

_FINAL = (400, 401, 403, 404, 422)
_MAY_PASS = (aiohttp.ClientError, TimeoutError, ConnectionError)
_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 16.0


async def post(session: aiohttp.ClientSession, url: str, payload: Json, timeout_s: float) -> Json:
    """Ask once. Raises SyncError when asking again cannot help, else what `Patience` waits out."""
    limit = aiohttp.ClientTimeout(total=timeout_s)
    async with session.post(url, json=payload, headers=vllm_headers(url), timeout=limit) as response:
        if response.status in _FINAL:
            raise SyncError(f"{url} answered HTTP {response.status}: {(await response.text())[:300]}")
        response.raise_for_status()
        answer: Json = await response.json()
        if any(choice["finish_reason"] == "abort" for choice in answer["choices"]):
            raise aiohttp.ClientPayloadError("the answer was aborted")  # it would be trained on
        return answer


class Patience:
    """Asks again until there is an answer, or none for `limit_s` seconds. Shared by all requests, which wait alike."""

    def __init__(self, url: str, limit_s: float) -> None:
        self._url = url
        self._limit_s = limit_s
        self._is_away = False

    async def ask(self, request: Callable[[], Awaitable[Json]], on_retry: Callable[[], None]) -> Json:
        """Raises SyncError after the limit."""
        failing_since, delay_s = math.inf, _FIRST_DELAY_S
        while True:
            try:
                answer = await request()
            except _MAY_PASS as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                self._note(is_away=False, reason="it answers again")
                return answer
            failing_since = min(failing_since, time.monotonic())
            if (waited := time.monotonic() - failing_since) > self._limit_s:
                raise SyncError(f"{self._url} gave no answer for {waited:.0f} s; the last time: {reason}")
            self._note(is_away=True, reason=reason)
            on_retry()
            await asyncio.sleep(min(delay_s, self._limit_s))
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _note(self, is_away: bool, reason: str) -> None:
        """One line when the Space goes and one when it is back, however many requests wait."""
        if is_away != self._is_away:
            self._is_away = is_away
            print(f"rollouts {'wait for' if is_away else 'go on with'} {self._url}: {reason}", flush=True)
