"""How long a staged delta takes to become live in vLLM's model, in the pause: ours, placed alone, and placed, read
back and verified, against vLLM's `load_checkpoint_weight_patches`, with its own checks of the patches and without, and
its `load_weights` of whole tensors from a copy on the CPU, all without a look at what became of it. The least that
placing can take is a bare `scatter_` of the same elements into that copy.

The model is vLLM's own, on the CPU and in this process, without an engine around it. Torch has one thread, which is
all that vLLM gives its worker on two cores as it keeps one for the rest, and then one per core. What each way leaves
in the model is compared with what it should be, outside of the time that is taken; a recount of everything ends each
case.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch

from shared import fingerprint
from shared.bits import DTYPES
from shared.changes import Change, fingerprint_gain
from shared.files import Label, write_delta
from shared.types import DataFile, Manifest, now
from space_vllm.outcomes import Audited, Verified
from space_vllm.placement import Places
from space_vllm.receiver import Receiver
from tests.bench import models
from tests.bench.clock import timed
from tests.bench.growth import exponent
from tests.bench.neighbours import neighbours, place
from tests.bench.rows import Result, Row, result
from tests.bench.steps import QWEN3_06B, Qwen3
from tests.space_vllm.driving import audited, settled
from tests.space_vllm.vllm_models import Loaded, load
from tests.torch_threads import torch_threads

PLACED, VERIFIED = "placing, s", "placing and verifying, s"
PATCHES, UNCHECKED = "load_checkpoint_weight_patches", "load_checkpoint_weight_patches, unchecked"
DENSE, BARE = "load_weights of all", "scatter_ alone"
_DEADLINE_S = 900.0


@dataclass(frozen=True)
class Plan:
    size: Qwen3 = QWEN3_06B
    densities: Sequence[float] = (0.001, 0.01, 0.03, 0.1)
    threads: Sequence[int] = tuple(sorted({1, len(os.sched_getaffinity(0))}))
    repetitions: int = 5
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class Seconds:
    """Of one density and number of torch's threads, `by_way`: each the median."""

    density: float
    threads: int
    by_way: Mapping[str, float]


class Bench:
    """vLLM's model of random weights, a receiver that has joined with it, and the weights that are live."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        from space_vllm.vllm_model import VllmModel

        models.save(plan.size, folder)
        self._loaded: Loaded = load(folder, plan.dtype)
        model = VllmModel(self._loaded.model, self._loaded.config)
        self._weights = models.weights_of(plan.size)
        self._places: Places = model.find(self._weights)
        self._receiver = Receiver(model)
        self._receiver.join()
        joined = settled(self._receiver, _DEADLINE_S)
        assert joined.state == "ready", joined.error
        self._version, self._fingerprint = 0, int(joined.fingerprint, 16)
        self._file = folder / "delta.safetensors"
        self._generator = torch.Generator().manual_seed(0)

    def measure(self, density: float, threads: int, repetitions: int) -> Seconds:
        with torch_threads(threads):
            found = [self._once(density) for _ in range(repetitions)]
        assert audited(self._receiver, _DEADLINE_S) == Audited("done"), (
            "other weights are live than those that were loaded last"
        )
        return Seconds(density, threads, {way: median(one[way] for one in found) for way in found[0]})

    def _once(self, density: float) -> dict[str, float]:
        """Ours goes on by a version, the patches go back behind our back, and all is loaded as the version has it."""
        changes = neighbours(self._weights, density, self._generator)
        staged = self._stage(changes)
        placing, placed = timed(self._receiver.apply)
        assert not placed.error, placed.error
        verifying, verified = timed(self._receiver.verify)
        assert verified == Verified(staged), verified
        patches, unchecked = (timed(partial(self._patch, changes, has_checks))[0] for has_checks in (True, False))
        self._check(changes, lambda change: change.old)
        bare = timed(lambda: place(self._weights, changes))[0]
        dense = timed(lambda: self._loaded.model.load_weights(self._weights.items()))[0]  # type: ignore[operator]
        self._check(changes, lambda change: change.new)
        peers = {PATCHES: patches, UNCHECKED: unchecked, DENSE: dense, BARE: bare}
        return {PLACED: placing, VERIFIED: placing + verifying, **peers}

    def _patch(self, changes: Sequence[Change], has_checks: bool) -> None:
        """To the old values, which are as many as the new ones."""
        from vllm.model_executor.model_loader import checkpoint_weight_patch as patching

        patches = []
        for change in changes:
            spec, dtype = change.spec, DTYPES[change.spec.dtype]
            old = change.old.view(dtype)
            patches.append(patching.CheckpointWeightPatch(spec.name, spec.shape, dtype, old, change.indices))
        patching.load_checkpoint_weight_patches(self._loaded.model, patches, validate_unique_indices=has_checks)

    def _stage(self, changes: Sequence[Change]) -> str:
        """The fingerprint of the version that is staged."""
        base = self._version, fingerprint.to_text(self._fingerprint)
        self._version += 1
        self._fingerprint += fingerprint_gain(changes)
        reached, total = fingerprint.to_text(self._fingerprint), sum(t.numel() for t in self._weights.values())
        file, changed = DataFile("delta", 1, "0" * 32), sum(change.count for change in changes)
        manifest = Manifest("bench", self._version, "delta", (file,), reached, changed, total, 1, now(), *base)
        write_delta(self._file, Label.of(manifest), changes, total, "packed")
        self._receiver.stage(manifest, [self._file])
        staged = settled(self._receiver, _DEADLINE_S)
        assert staged.state == "ready", staged.error
        return staged.fingerprint

    def _check(self, changes: Sequence[Change], wanted: Callable[[Change], torch.Tensor]) -> None:
        for change in changes:
            live = self._places.read(change.spec, change.indices)
            assert torch.equal(live, wanted(change)), f"{change.spec.name} is not what was written"


def run(plan: Plan | None = None) -> Result:
    """In a process of its own, since vLLM changes the one it is loaded in."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        found = process.submit(_measure_quietly, plan or Plan()).result()
    return result(rows(found))


def _measure_quietly(plan: Plan) -> list[Seconds]:
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    return measure(plan)


def measure(plan: Plan) -> list[Seconds]:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(plan, Path(folder))
        return [bench.measure(*case, plan.repetitions) for case in product(plan.densities, plan.threads)]


def rows(found: Sequence[Seconds]) -> Iterator[Row]:
    for one in found:
        case = f"{100 * one.density:g} % changed, {_threads(one.threads)}"
        for ours in (PLACED, VERIFIED):
            for peer in (PATCHES, UNCHECKED, DENSE, BARE):
                yield Row(case, ours, peer, one.by_way[ours], one.by_way[peer])
    for threads in dict.fromkeys(one.threads for one in found):
        alike = [one for one in found if one.threads == threads]
        densities = [one.density for one in alike]
        grown = {way: exponent(densities, [one.by_way[way] for one in alike]) for way in (VERIFIED, PATCHES, DENSE)}
        for peer in (PATCHES, DENSE):
            what = "apply, fitted exponent of the density"
            yield Row(f"all densities, {_threads(threads)}", what, peer, grown[VERIFIED], grown[peer])


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
