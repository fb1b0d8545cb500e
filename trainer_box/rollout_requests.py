"""The rollouts' requests to the vLLM Space: with its key, final when it refuses them, patient while it is away.

Knows HTTP; nothing of prompts, and nothing of who asks. Runs in the rollout child.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

import aiohttp

from shared import strict_json
from shared.document import Document
from shared.errors import IntegrityError, SyncError
from shared.output import say
from shared.types import Json
from trainer_box.headers import vllm_headers

_FINAL = (400, 401, 403, 422)
_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 16.0


class PassingError(Exception):
    """An answer that is none; there may be another one later."""


_MAY_PASS = (aiohttp.ClientError, TimeoutError, ConnectionError, PassingError)


async def post(session: aiohttp.ClientSession, url: str, payload: Json, timeout_s: float) -> Json:
    """Ask once, and nobody else: a redirect would lead the Hub's token away. Raises SyncError when asking again cannot
    help, else what `Patience` waits out."""
    limit = aiohttp.ClientTimeout(total=timeout_s)
    request = session.post(url, json=payload, headers=vllm_headers(url), timeout=limit, allow_redirects=False)
    async with request as response:
        body = await response.read()
    told = f"HTTP {response.status}: {' '.join(body[:300].decode(errors='replace').split())}"
    if response.status in _FINAL:
        raise SyncError(f"{url} answered {told}")
    if response.status == 404:  # a proxy's, while the Space is built or restarts
        raise PassingError(f"{told}; check that it is the address of the vLLM Space")
    if response.status != 200:
        raise PassingError(told)
    try:
        return _completion(body)
    except (ValueError, IntegrityError) as error:
        raise PassingError(f"{told} ({error})") from error


def _completion(body: bytes) -> Json:
    answer: Json = strict_json.parse(body)
    choices = Document(answer, "the answer").array("choices")
    if not choices:
        raise IntegrityError("the answer has no choice")
    for choice in choices:
        _check(Document(choice, "a choice"))
    return answer


def _check(choice: Document) -> None:
    """What is trained on: tokens, each with its log-probability, of a completion that came to its end."""
    if choice.text("finish_reason") == "abort":
        raise IntegrityError("the answer was aborted")
    tokens = choice.array("token_ids")
    logprobs = Document(choice.object("logprobs"), "logprobs").array("token_logprobs")
    if [type(token) for token in tokens] != [int] * len(logprobs) or not {type(p) for p in logprobs} <= {int, float}:
        raise IntegrityError(f"{len(tokens)} tokens and {len(logprobs)} log-probabilities do not go together")


class Patience:
    """Asks again until there is an answer, or none for `limit_s` seconds. Shared by all requests, which wait alike.

    A request that got no answer in its own time counts from its start. One that was cut counts from the cut, since it
    may have been answered well until then, for longer than the limit.
    """

    def __init__(self, url: str, limit_s: float) -> None:
        self._url = url
        self._limit_s = limit_s
        self._is_away = False
        self._answered = -math.inf

    async def ask(self, request: Callable[[], Awaitable[Json]], on_retry: Callable[[], None]) -> Json:
        """Raises SyncError after the limit."""
        failing_since, delay_s = math.inf, _FIRST_DELAY_S
        while True:
            started = time.monotonic()
            try:
                answer = await request()
            except _MAY_PASS as error:
                reason = str(error) if isinstance(error, PassingError) else f"{type(error).__name__}: {error}"
                silent_since = started if isinstance(error, TimeoutError) else time.monotonic()
            else:
                self._answered = time.monotonic()
                self._note(is_away=False, reason="it answers again")
                return answer
            failing_since = min(failing_since, max(silent_since, self._answered))
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
            say(f"rollouts {'wait for' if is_away else 'go on with'} {self._url}: {reason}")
