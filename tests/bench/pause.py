"""How long nobody gets a token because of a sync: live servers under load, our order of a sync and the public blog's.

Both syncs change the same share of the weights, over the same link, which is so slow that the blog's file takes 1.5 s;
then over one that takes no time. The pause counts from the moment at which the engine is idle to the end of the call
that resumes it; what comes before (drain) and after (requests are prefilled anew, on the new weights) is told apart.
A sync of ours verifies the weights in the pause; after one of the blog's, vLLM's checksums are looked at, untimed.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from shared import fingerprint
from shared.bucket import LOCAL, open_bucket
from shared.changes import Change
from shared.files import Label, write_delta
from shared.types import Base, Manifest
from tests.bench import blog_server, models
from tests.bench.blog_server import Link
from tests.bench.neighbours import neighbours, place
from tests.bench.plot import Curve, draw
from tests.bench.rows import Result, Row, result
from tests.bench.steps import QWEN3_06B, SERVED_20M, Qwen3
from tests.bench.streams import Streams, streaming
from tests.space_vllm.fakes import KEY
from tests.space_vllm.live_server import Server, serving
from tests.space_vllm.tiny import live_checksums
from trainer_box.publisher import Publisher

RUN, DENSITY = "bench", 0.01
DOWNLOAD_S = 1.5  # of the blog's file, over the slow link
PLOT = Path("runs/bench/pause.svg")
_FAST, _BIN_S, _DEADLINE_S = 1e12, 0.25, 600.0

Call = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Seconds before a sync in which the load is steady, and after it in which the load may recover."""

    name: str = "19 M"
    size: Qwen3 = SERVED_20M
    streams: int = 32
    prompt: int = 64
    tokens: int = 256
    before_s: float = 5.0
    after_s: float = 6.0
    repetitions: int = 3


def large() -> Plan:
    """Fewer and shorter streams: two cores compute few tokens of this model per second."""
    return Plan("0.6B", QWEN3_06B, streams=4, prompt=16, tokens=24, before_s=20.0, after_s=40.0, repetitions=1)


@dataclass(frozen=True)
class Pause:
    """Milliseconds, and tokens. `lost_tokens` is what a steady load would have got more, until it had recovered."""

    pause_ms: float
    drain_ms: float
    first_token_ms: float
    worst_gap_ms: float
    refilled_tokens: float
    lost_tokens: float


@dataclass(frozen=True)
class Found:
    """Of one model, by the name of the link: ours and the blog's."""

    model: str
    pauses: dict[str, tuple[list[Pause], list[Pause]]]
    curves: list[Curve]


class Bench:
    """Keeps the trainer's weights, which are live whenever a sync of ours begins."""

    def __init__(self, plan: Plan, server: Server, link: Link, folder: Path) -> None:
        self._plan, self._server, self._link = plan, server, link
        self._streams = Streams(plan.streams, plan.prompt)
        self._blog, self._file = open_bucket(f"{LOCAL}{folder / 'blog'}"), folder / "delta.safetensors"
        self._weights = models.weights_of(plan.size)
        self._generator = torch.Generator().manual_seed(0)
        self._synced = 0
        self._curves: dict[str, Curve] = {}

    async def play(self, publisher: Publisher) -> Found:
        found: dict[str, tuple[list[Pause], list[Pause]]] = {}
        self._link.set(_FAST)
        self._update(publisher)
        size = self._file.stat().st_size if self._write(self._changes()) else 0
        async with streaming(self._server.url, KEY, "tiny", self._streams, self._plan.tokens):
            await self._until(lambda: len({one.stream for one in self._streams.got}) == self._plan.streams)
            for name, speed in (("slow link", size / DOWNLOAD_S), ("fast link", _FAST)):
                ours, blog = found.setdefault(name, ([], []))
                for _ in range(self._plan.repetitions):
                    self._link.set(speed)
                    ours.append(await self._ours(publisher, name))
                    blog += await self._there_and_back(name)
        return Found(self._plan.name, found, list(self._curves.values()))

    async def _ours(self, publisher: Publisher, link: str) -> Pause:
        place(self._weights, self._changes())
        return await self._measure(f"ours, {link}", lambda: self._publish(publisher))

    async def _there_and_back(self, link: str) -> list[Pause]:
        """The blog's sync to other weights, and back to those that our side takes to be live."""
        changes, found = self._changes(), []
        for one_way in (changes, [change.reversed() for change in changes]):
            place(self._weights, one_way)
            found.append(await self._measure(f"the blog's order, {link}", partial(self._prepare, one_way)))
            live = await asyncio.to_thread(self._server.checksums)
            assert live == live_checksums(self._weights, self._server.dtype), "the blog's sync left other weights"
        return found

    async def _measure(self, what: str, prepare: Callable[[], Callable[[], None]]) -> Pause:
        known = len(await asyncio.to_thread(self._calls))
        await asyncio.sleep(self._plan.before_s)
        steady = time.monotonic()
        sync = await asyncio.to_thread(prepare)
        announced = time.monotonic()
        await asyncio.to_thread(sync)
        await asyncio.sleep(self._plan.after_s)
        calls = (await asyncio.to_thread(self._calls))[known:]
        assert [call["call"] for call in calls] == ["pause_generation", "resume_generation"], calls
        await self._until(lambda: self._streams.got[-1].at > calls[1]["ended"])
        self._curves[what] = Curve(what, self._rates(announced))
        return pause_of(self._streams, (steady - self._plan.before_s, steady), announced, calls[0], calls[1])

    @staticmethod
    async def _until(met: Callable[[], bool]) -> None:
        async with asyncio.timeout(_DEADLINE_S):
            while not met():
                await asyncio.sleep(_BIN_S)

    def _publish(self, publisher: Publisher) -> Callable[[], None]:
        manifest = publisher.publish(self._weights.items())
        assert manifest.kind == "delta", f"version {manifest.version} is an {manifest.kind}"
        return lambda: self._announce(manifest)

    def _update(self, publisher: Publisher) -> None:
        self._announce(publisher.publish(self._weights.items()))

    def _announce(self, manifest: Manifest) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while (told := self._server.update(manifest))[0] == 202:
            assert time.monotonic() < deadline, told
        assert told[0] == 200, told

    def _prepare(self, changes: Sequence[Change]) -> Callable[[], None]:
        path = self._write(changes)
        return lambda: self._ask_for(path)

    def _write(self, changes: Sequence[Change]) -> str:
        """The blog's file, in its bucket."""
        self._synced += 1
        label = Label("blog", self._synced, "0" * 16, self._synced - 1, "0" * 16)
        write_delta(self._file, label, changes, sum(t.numel() for t in self._weights.values()), "coo")
        self._blog.write(path := f"{self._synced}.safetensors", self._file)
        return path

    def _ask_for(self, path: str) -> None:
        status, told = self._server.call(blog_server.SYNC, {"bucket": self._blog.name, "path": path})
        assert status == 200, told

    def _calls(self) -> list[Call]:
        calls: list[Call] = self._server.call(blog_server.PAUSES)[1]
        return calls

    def _changes(self) -> list[Change]:
        return neighbours(self._weights, DENSITY, self._generator)

    def _rates(self, announced: float) -> list[tuple[float, float]]:
        """Tokens per second, by the seconds since the sync was announced."""
        bins = round((self._plan.before_s + self._plan.after_s) / _BIN_S)
        starts = [n * _BIN_S - self._plan.before_s for n in range(bins)]
        tokens = [self._streams.tokens(announced + start, announced + start + _BIN_S) for start in starts]
        return [(start, count / _BIN_S) for start, count in zip(starts, tokens, strict=True)]


def pause_of(streams: Streams, steady: tuple[float, float], announced: float, pause: Call, resume: Call) -> Pause:
    """From what came to the streams, and when the engine was paused and resumed; `steady` is a time before that."""
    idle, resumed, end = pause["ended"], resume["ended"], time.monotonic()
    rate = streams.tokens(*steady) / (steady[1] - steady[0])
    after = streams.between(resumed, end)
    assert after, f"no token came in {end - resumed:.1f} s after the engine was resumed"
    return Pause(
        pause_ms=1000 * (resumed - idle),
        drain_ms=1000 * (idle - pause["began"]),
        first_token_ms=1000 * (after[0].at - resumed),
        worst_gap_ms=1000 * streams.longest_gap_s(pause["began"], end),
        refilled_tokens=streams.held_at(idle),
        lost_tokens=rate * (end - announced) - streams.tokens(announced, end),
    )


def run(plans: Sequence[Plan] | None = None) -> Result:
    found = [measure(plan) for plan in plans or (Plan(), large())]
    panels = {f"{one.model} parameters": one.curves for one in found}
    draw(panels, "seconds since a version was announced", "tokens per second, all requests", PLOT)
    return result(row for one in found for row in rows(one))


def measure(plan: Plan) -> Found:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models.save(plan.size, folder / "model")
        link = Link(folder / "link")
        environment = {**link.environment, "RUN_ID": RUN, "AUDIT_SECONDS": "0"}
        link.set(_FAST)
        with serving(folder, folder / "model", "float32", True, blog_server.ARGUMENTS, environment) as server:
            return bench_on(plan, server, link, folder)


def bench_on(plan: Plan, server: Server, link: Link, folder: Path) -> Found:
    """The run starts from the model that the server has loaded."""
    bench = Bench(plan, server, link, folder)
    counted = fingerprint.to_text(fingerprint.fingerprint(models.weights_of(plan.size)))
    base = Base(repo=str(folder / "model"), fingerprint=counted)
    with Publisher(open_bucket(f"{LOCAL}{server.bucket}"), RUN, base=base) as publisher:
        return asyncio.run(bench.play(publisher))


def rows(found: Found) -> Iterator[Row]:
    for link, (ours, blog) in found.pauses.items():
        for one in fields(Pause):
            values = [median(getattr(pause, one.name) for pause in side) for side in (ours, blog)]
            yield Row(f"{found.model}, {link}", one.name.replace("_", " "), "the blog's order", *values)
