"""A worker without vLLM: the real receiver over a dict of tensors, behind an engine client that records its calls."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from fastapi import FastAPI

from shared import fingerprint
from shared.bits import bits
from shared.bucket import open_bucket
from shared.changes import Change
from shared.errors import SyncError
from shared.types import Manifest, TensorSpec
from space_vllm.endpoint import Space, add_routes, install
from space_vllm.engine import Deadlines
from space_vllm.guard import Guard
from space_vllm.outcomes import Answer
from space_vllm.placement import Weights
from space_vllm.receiver import Receiver
from space_vllm.settings import Settings
from trainer_box.publisher import Publisher

KEY = "a-key-for-tests"
QUICK = Deadlines(call=5, bucket=5, stage=5, pause=5, apply=5, retry=0.05, slowest_retry=0.1)


def make_weights(seed: int, step: int = 0) -> Weights:
    """Random weights; each step changes a few elements of each tensor, so that steps of one seed make deltas."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (256, 16), "layers.0.weight": (32, 16), "norm.weight": (16,)}
    weights = {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}
    for tensor in weights.values():
        tensor.view(-1)[:8] += step
    return weights


def equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class DictModel:
    """The live model is a dict of tensors, which are placed as they are.

    `failures` counts how many of the next writes fail after their first tensor; the next `skewed` ones go one element
    off. While `strays`, each write in place also changes an element that it should not.
    """

    def __init__(self, base: Weights) -> None:
        self.files = base
        self.live = {name: tensor.clone() for name, tensor in base.items()}
        self.failures = self.skewed = 0
        self.strays = False
        self.is_trusted = True

    def base(self) -> Weights:
        return {name: tensor.clone() for name, tensor in self.files.items()}

    def find(self, tensors: Mapping[str, torch.Tensor]) -> "DictPlaces":
        if odd := tensors.keys() ^ self.live.keys():
            raise SyncError(f"the live model is not made of these tensors: {sorted(odd)}")
        return DictPlaces(self)

    def backup(self) -> Weights:
        return {name: tensor.clone() for name, tensor in self.live.items()}

    def restore(self, backup: Weights) -> None:
        for name, tensor in backup.items():
            self.write(name, torch.arange(tensor.numel()), bits(tensor))

    def distrust(self) -> None:
        self.is_trusted = False

    def write(self, name: str, indices: torch.Tensor, new: torch.Tensor) -> None:
        if self.skewed:
            self.skewed, indices = self.skewed - 1, indices - 1
        bits(self.live[name])[indices] = new
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the loader broke")


class DictPlaces:
    def __init__(self, model: DictModel) -> None:
        self._model = model

    def adopt(self, tensors: Mapping[str, torch.Tensor]) -> None: ...

    def rehearse(self) -> None: ...

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._model.restore(dict(tensors))

    def write(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._model.write(change.spec.name, change.indices, change.new)
            if self._model.strays and self._model.is_trusted:
                bits(self._model.live[change.spec.name])[-1] ^= 1

    def undo(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._model.write(change.spec.name, change.indices, change.old)

    def admit(self, spec: TensorSpec, patterns: torch.Tensor) -> None: ...

    def read(self, spec: TensorSpec, indices: torch.Tensor) -> torch.Tensor:
        return bits(self._model.live[spec.name])[indices]

    def count(self, spec: TensorSpec, stopped: Callable[[], bool]) -> int | None:
        return None if stopped() else fingerprint.tensor(spec, bits(self._model.live[spec.name]))

    def check(self) -> None: ...

    def summary(self) -> dict[str, int]:
        count = len(self._model.live)
        return {"in_place": count, "reloaded": 0} if self._model.is_trusted else {"in_place": 0, "reloaded": count}


class FakeClient:
    """vLLM's engine client with one worker.

    `broken` maps the name of a call to what it raises, once, `held` to what it waits for. `cached` blocks survive
    `sticky` clears.
    """

    def __init__(self, base: Weights) -> None:
        self.model = DictModel(base)
        self.receiver = Receiver(self.model)
        self.calls: list[str] = []
        self.paused = False
        self.weight_version = "default"
        self.in_flight = 0
        self.errored = False
        self.broken: dict[str, Exception] = {}
        self.held: dict[str, asyncio.Event] = {}
        self.cached, self.sticky = 0, 0

    @property
    def engine_core(self) -> "FakeClient":
        return self

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        assert method == "delta_cached_blocks"
        return self.cached

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert clear_cache
        self._record("pause" if mode == "keep" else mode)
        self.paused = True
        self._clear_cache()

    async def resume_generation(self) -> None:
        self._record("resume")
        if "resume" in self.held:
            await self.held["resume"].wait()
        self.paused = False

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        assert reset_running_requests and reset_connector
        self._record("reset")
        return self._clear_cache()

    async def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()) -> Any:
        assert timeout is None
        self._record(method)
        if method in self.held:
            await self.held[method].wait()
        return [self._worker(method.removeprefix("delta_"), args)]

    async def update_weight_version(self, new_version: str) -> None:
        self.weight_version = new_version

    async def compute_weight_checksums(self) -> list[dict[str, str]]:
        self._record("checksums")
        return [{name: f"sum of {name}" for name in self.model.live}]

    def get_num_unfinished_requests(self) -> int:
        return self.in_flight

    def _clear_cache(self) -> bool:
        self.sticky -= bool(self.sticky)
        self.cached = self.cached if self.sticky else 0
        return not self.cached

    def _worker(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == "stage":
            return self.receiver.stage(Manifest.from_json(args[0].encode(), "update"), [Path(p) for p in args[1]])
        if method in ("apply", "undo", "verify"):
            assert self.paused, "values are only placed in a pause"
        answers: dict[str, Callable[[], Answer]] = {
            "poll": self.receiver.poll,
            "apply": self.receiver.apply,
            "undo": self.receiver.undo,
            "verify": self.receiver.verify,
            "recount": lambda: self.receiver.audit(*args),
        }
        if method in answers:
            return answers[method]().to_wire()
        silent = {
            "join": self.receiver.join,
            "stage_base": self.receiver.stage_base,
            "discard": self.receiver.discard,
            "lose": self.receiver.lose,
        }
        return silent[method]()

    def _record(self, call: str) -> None:
        if call not in ("delta_poll", "delta_recount"):  # which come often
            self.calls.append(call)
        if call in self.broken:
            raise self.broken.pop(call)


@dataclass
class Running:
    """The Space's app with its reconciler at work, reached as over HTTP."""

    http: httpx.AsyncClient
    client: FakeClient
    space: Space
    settings: Settings
    app: FastAPI

    @property
    def live(self) -> Weights:
        return self.client.model.live

    async def update(self, manifest: Manifest, wait: float = 10, **changed: Any) -> httpx.Response:
        message = {
            "repo_id": self.settings.bucket,
            "filename": manifest.path,
            "version": manifest.version,
            "run_id": manifest.run_id,
            **changed,
        }
        return await self.http.post("/weights/update", params={"wait": wait}, json=message)

    async def status(self, **parameters: float) -> dict[str, Any]:
        answer = await self.http.get("/weights/status", params=parameters)
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found

    async def healthy(self) -> None:
        """Returns once /health answers 200; fails after ten seconds."""
        async with asyncio.timeout(10):
            while (await self.http.get("/health")).status_code != 200:
                await asyncio.sleep(0.02)


def make_settings(folder: Path, run_id: str | None = None) -> Settings:
    return Settings(f"local:{folder}", "/model", "tiny", 7860, "127.0.0.1", KEY, None, run_id, audit_s=0.05)


@contextlib.asynccontextmanager
async def running(
    folder: Path, *, client: FakeClient | None = None, run_id: str | None = None, healthy: bool = True
) -> AsyncIterator[Running]:
    """A Space over the bucket in `folder`, with recounts all the time; with `healthy`, waits until it is."""
    client = client or FakeClient(make_weights(0))
    app, settings = FastAPI(), make_settings(folder, run_id)
    add_routes(app)
    app.add_middleware(Guard)
    space = install(app.state, settings, client, QUICK, {"dtype": "float32"})
    task = asyncio.create_task(space.reconciler.run())
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://space", headers=headers) as http:
        found = Running(http, client, space, settings, app)
        if healthy:
            await found.healthy()
        yield found
    task.cancel()


Scenario = Callable[[Running], Awaitable[None]]


def play(folder: Path, scenario: Scenario, **options: Any) -> None:
    """Act out `scenario` on a Space of its own, with `running`'s options."""

    async def whole() -> None:
        async with running(folder, **options) as space:
            await scenario(space)

    asyncio.run(whole())


def publisher(folder: Path, run_id: str) -> Publisher:
    return Publisher(open_bucket(f"local:{folder}"), run_id)
