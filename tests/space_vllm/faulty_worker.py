"""The worker extension with faults in it that happen as often as the plan says. Without a plan it is the real one."""

import time
from collections.abc import Callable, ItemsView, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from shared.bits import bits
from shared.changes import Change
from space_vllm.coverage import padding
from space_vllm.live import LiveTensor
from space_vllm.outcomes import Progress
from space_vllm.receiver import Receiver, Staged, Version
from space_vllm.vllm_model import VllmModel
from space_vllm.worker import WorkerExtension
from tests.space_vllm import faults

TENSOR = "model.layers.0.mlp.up_proj.weight"  # in the middle of fused memory

_write, _load = LiveTensor.write, VllmModel.load


def _write_one_off(live: LiveTensor, change: Change) -> None:
    if change.spec.name == TENSOR:
        regions = [replace(region, live_offset=region.live_offset - 1) for region in live.regions]
        live = LiveTensor(live.spec, tuple(regions))
    _write(live, change)


def _skip(live: LiveTensor, change: Change) -> None:
    if change.spec.name != TENSOR:
        _write(live, change)


def _write_late(live: LiveTensor, change: Change) -> None:
    if change.spec.name == TENSOR:
        time.sleep(faults.from_environment().take_all("apply_seconds"))
    _write(live, change)


class _Broken(dict[str, torch.Tensor]):
    """Ends half-way when a loader goes through it."""

    def items(self) -> Any:
        everything: ItemsView[str, torch.Tensor] = super().items()
        for number, item in enumerate(everything):
            if number == len(everything) // 2:
                raise RuntimeError("the loader broke")
            yield item


def _load_half(model: VllmModel, tensors: Mapping[str, torch.Tensor], reloaded: Mapping[str, set[str]]) -> None:
    _load(model, _Broken(tensors), reloaded)


def _restore_nothing(model: VllmModel, backup: Mapping[str, torch.Tensor]) -> None:
    raise RuntimeError("the old weights cannot be put back")


def _lie(receiver: Receiver, expected: Version, staged: Staged) -> str:
    return expected.fingerprint


_IN_APPLY: dict[str, tuple[type, str, Callable[..., None]]] = {
    "one_off": (LiveTensor, "write", _write_one_off),
    "skip": (LiveTensor, "write", _skip),
    "apply_slowly": (LiveTensor, "write", _write_late),
    "half_load": (VllmModel, "load", _load_half),
}


@contextmanager
def _replaced(owner: type, name: str, faulty: Callable[..., Any]) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, faulty)
    try:
        yield
    finally:
        setattr(owner, name, original)


class FaultyExtension(WorkerExtension):
    """`flip` changes a bit behind everybody's back; `trust` is no fault: it has weights written in place again.

    `stage_seconds` is how long staging takes, at least; `apply_slowly` waits for `apply_seconds` in its middle.
    """

    _delta_staged_at = 0.0

    def delta_stage(self, manifest: str, files: list[str]) -> None:
        plan = faults.from_environment()
        if plan.take("trust"):
            vars(self._delta())["_model"].is_trusted = True
        self._delta_staged_at = time.monotonic() + plan.take_all("stage_seconds")
        super().delta_stage(manifest, files)

    def delta_poll(self) -> dict[str, Any]:
        return super().delta_poll() if time.monotonic() >= self._delta_staged_at else Progress("working").to_wire()

    def delta_apply(self) -> dict[str, Any]:
        plan = faults.from_environment()
        with ExitStack() as stack:
            for name, fault in _IN_APPLY.items():
                if plan.take(name):
                    stack.enter_context(_replaced(*fault))
            placed = super().delta_apply()
        if plan.take("padding"):
            for _, rows in padding(self.model_runner.get_model()):
                rows.fill_(1)
        if plan.take("break_off"):
            raise RuntimeError("the worker broke off")
        return placed

    def delta_verify(self) -> dict[str, Any]:
        with ExitStack() as stack:
            if faults.from_environment().take("lie"):
                stack.enter_context(_replaced(Receiver, "_found", _lie))
            return super().delta_verify()

    def delta_undo(self) -> dict[str, Any]:
        with ExitStack() as stack:
            if faults.from_environment().take("no_undo"):
                stack.enter_context(_replaced(VllmModel, "restore", _restore_nothing))
            return super().delta_undo()

    def delta_recount(self, anew: bool) -> dict[str, Any]:
        plan = faults.from_environment()
        if plan.take("flip"):
            bits(self.model_runner.get_model().get_parameter("model.norm.weight").detach())[7] ^= 1 << 20
        return super().delta_recount(anew)
