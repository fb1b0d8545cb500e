"""What the pause's benchmark adds to a Space's server: the public blog's order of a sync, a slow link, and a meter.

The blog's order: pause, download, apply with vLLM's `load_checkpoint_weight_patches`, resume. Download and apply are
one call of the worker, as they are when a weight transfer of vLLM's receives from a bucket. Nothing is verified by it.
`python -m space_vllm.serve` is given both classes, by `ARGUMENTS`.
"""

import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file

from shared.bucket import open_bucket
from shared.bucket.folder import FolderBucket
from shared.container import read_header
from shared.files import read_table
from space_vllm.worker import WorkerExtension
from tests.bench.throttled import Throttled

ARGUMENTS = (
    *("--worker-extension-cls", "tests.bench.blog_server.BlogExtension"),
    *("--middleware", "tests.bench.blog_server.Meter"),
)
SYNC, PAUSES = "/bench/sync", "/bench/pauses"
_LINK = "BENCH_LINK"


class Link:
    """The speed of the link to the bucket, in bytes per second, kept in a file for all processes of the server."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.environment = {_LINK: str(file)}

    def set(self, bytes_per_s: float) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(bytes_per_s))
        draft.replace(self._file)

    def get(self) -> float:
        return float(self._file.read_text())


def link() -> Link:
    return Link(Path(os.environ[_LINK]))


class BlogExtension(WorkerExtension):
    def bench_sync(self, bucket: str, path: str) -> None:
        """Fetch a delta of absolute values and apply it."""
        from vllm.model_executor.model_loader import checkpoint_weight_patch as patching

        with TemporaryDirectory() as folder:
            file = Path(folder) / "delta"
            Throttled(open_bucket(bucket), link().get()).download(path, file)
            table, tensors = read_table(read_header(file)), load_file(file)
        patches = []
        for spec, _ in table:
            values, indices = tensors[f"{spec.name}.values"], tensors[f"{spec.name}.indices"]
            patches.append(patching.CheckpointWeightPatch(spec.name, spec.shape, values.dtype, values, indices))
        with torch.no_grad():
            model = self.model_runner.get_model()
            patching.load_checkpoint_weight_patches(model, patches, validate_unique_indices=False)


class Meter:
    """Notes when the engine is paused and resumed, whoever does it, and syncs in the blog's order when asked to."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._client: Any = None
        self._calls: list[dict[str, Any]] = []
        FolderBucket.download = _slow(FolderBucket.download)  # type: ignore[assignment, method-assign]

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if self._client is None:
            self._client = scope["app"].state.engine_client
            for name in ("pause_generation", "resume_generation"):
                setattr(self._client, name, self._noted(name, getattr(self._client, name)))
        if scope["path"] == PAUSES:
            return await _answer(send, self._calls)
        if scope["path"] == SYNC:
            await self._sync(**json.loads((await receive())["body"]))
            return await _answer(send, {})
        return await self._app(scope, receive, send)

    async def _sync(self, bucket: str, path: str) -> None:
        await self._client.pause_generation(mode="keep", clear_cache=True)
        try:
            await self._client.collective_rpc("bench_sync", args=(bucket, path))
        finally:
            await self._client.resume_generation()

    def _noted(self, name: str, call: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def noted(**named: Any) -> None:
            began = time.monotonic()
            await call(**named)
            self._calls.append({"call": name, "began": began, "ended": time.monotonic()})

        return noted


def _slow(download: Callable[[FolderBucket, str, Path], None]) -> Callable[[FolderBucket, str, Path], None]:
    def slow(bucket: FolderBucket, path: str, target: Path) -> None:
        started = time.monotonic()
        download(bucket, path, target)
        time.sleep(max(0.0, started + target.stat().st_size / link().get() - time.monotonic()))

    return slow


async def _answer(send: Any, told: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(told).encode()})
