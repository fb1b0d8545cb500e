"""Many completions at once, each answered token by token; a stream that ends is followed by the next.

Knows when which stream got how many tokens, by this machine's monotonic clock; nothing of weights.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

_ANSWER_S = 300.0


@dataclass(frozen=True)
class Got:
    """Tokens that came at once. `held` is how many the request had then, those of its prompt with them."""

    at: float
    stream: int
    tokens: int
    held: int


@dataclass
class Streams:
    """`got` is in the order of time."""

    count: int
    prompt: int
    got: list[Got] = field(default_factory=list)

    def between(self, start: float, end: float) -> list[Got]:
        return [one for one in self.got if start <= one.at < end]

    def tokens(self, start: float, end: float) -> int:
        return sum(one.tokens for one in self.between(start, end))

    def held_at(self, moment: float) -> int:
        """Tokens of all the requests that are in flight then, as far as they were seen."""
        return sum({one.stream: one.held for one in self.got if one.at < moment}.values())

    def longest_gap_s(self, start: float, end: float) -> float:
        """Of any stream, between two tokens of which the second came in this time."""
        last, longest = dict[int, float](), 0.0
        for one in self.got:
            if start <= one.at < end and one.stream in last:
                longest = max(longest, one.at - last[one.stream])
            last[one.stream] = one.at
        return longest


@asynccontextmanager
async def streaming(url: str, key: str, model: str, streams: Streams, tokens: int) -> AsyncIterator[None]:
    """Requests of `tokens` tokens each while the context is open."""
    headers, timeout = {"Authorization": f"Bearer {key}"}, aiohttp.ClientTimeout(total=None, sock_read=_ANSWER_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, headers=headers, timeout=timeout, connector=connector) as session:
        tasks = [asyncio.create_task(_stream(session, model, streams, n, tokens)) for n in range(streams.count)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in ended:
        if not isinstance(outcome, asyncio.CancelledError):
            raise RuntimeError(f"a stream broke off: {outcome!r}")


async def _stream(session: aiohttp.ClientSession, model: str, streams: Streams, number: int, tokens: int) -> None:
    """Streams start at different lengths, so that they do not end together."""
    length = max(1, tokens * (number + 1) // streams.count)
    for request in range(1 << 30):
        prompt = [2 + (37 * number + 101 * request + 11 * place) % 300 for place in range(streams.prompt)]
        body = {"model": model, "prompt": prompt, "max_tokens": length, "seed": number, "stream": True}
        asked = {**body, "ignore_eos": True, "return_token_ids": True}
        held = streams.prompt
        async with session.post("/v1/completions", json=asked) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    count = len(json.loads(line.removeprefix(b"data: "))["choices"][0]["token_ids"])
                    held += count
                    streams.got.append(Got(asyncio.get_running_loop().time(), number, count, held))
        length = tokens
