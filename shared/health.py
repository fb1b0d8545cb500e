"""Whether a unit is well, asked at its `/health`, and waiting until it is, with progress: a sleeping Space wakes up
when it is asked.

Knows what proxies of Spaces answer in the place of a unit; nothing of what units do.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import httpx

from shared import strict_json
from shared.errors import SyncError

POLL_S = 2.0
ANSWER_S = 10.0
_TOLD_AGAIN_S = 30.0
_LONGEST = 300
_LARGEST = 1_000_000
_HINT = "; check the address, and HF_TOKEN if it is that of a private Space"

Report = Callable[[str], None]


def problem_of(url: str, headers: Mapping[str, str]) -> str:
    """Empty when the unit is well, else what it or a proxy answered, or that there was no whole answer in 10 s."""
    try:
        answer = get(f"{url.rstrip('/')}/health", headers)
    except TimeoutError:
        return f"no answer within {ANSWER_S:.0f} s"
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = _HINT if answer.status_code == 404 else ""
    return "" if answer.status_code == 200 else f"HTTP {answer.status_code}{_reason(answer)}{hint}"


def wait(what: str, problem: Callable[[], str], deadline_s: float, report: Report) -> None:
    """Return when `problem` is empty. Raises SyncError after `deadline_s` seconds, or what `problem` raises."""
    started = time.monotonic()
    told, told_at = "", started
    while reason := problem():
        now = time.monotonic()
        if now - started > deadline_s:
            raise SyncError(f"{what} is not ready after {deadline_s:.0f} s ({reason}); is it running?")
        if reason != told or now - told_at > _TOLD_AGAIN_S:
            report(f"waiting for {what}, {now - started:.0f} of at most {deadline_s:.0f} s: {reason}")
            told, told_at = reason, now
        time.sleep(min(POLL_S, deadline_s))


def get(address: str, headers: Mapping[str, str], seconds: float | None = None) -> httpx.Response:
    """Status and content. Raises httpx.HTTPError, also for an answer of more than 1 MB, and TimeoutError where there
    is no whole answer within `seconds`, by default 10."""
    return asyncio.run(_asked(address, dict(headers), ANSWER_S if seconds is None else seconds))


async def _asked(address: str, headers: dict[str, str], seconds: float) -> httpx.Response:
    """httpx's own time limits begin anew with every byte."""
    content = bytearray()
    async with asyncio.timeout(seconds), httpx.AsyncClient(trust_env=False, timeout=None) as client:
        async with client.stream("GET", address, headers=headers) as answer:
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > _LARGEST:
                    raise httpx.HTTPError(f"its answer has more than {_LARGEST:,} bytes")
    return httpx.Response(answer.status_code, content=bytes(content))


def _reason(answer: httpx.Response) -> str:
    """What one of our units gives as its reason, in brackets."""
    try:
        document = strict_json.parse(answer.content)
    except ValueError:
        return ""
    stated = document.get("error") if isinstance(document, dict) else None
    return f" ({' '.join(str(stated).split())[:_LONGEST]})" if stated else ""
