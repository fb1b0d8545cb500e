"""Placement through vLLM's own loaders. The only module that knows how they write.

It keeps no weights of its own and does not know versions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from vllm.model_executor.model_loader.checkpoint_weight_patch import (
    CheckpointWeightPatch,
    load_checkpoint_weight_patches,
)

from shared.bits import DTYPES, bits
from shared.changes import Change
from shared.errors import SyncError


class LoaderPlacement:
    """Through the model's own `load_weights`, which renames, fuses and casts: O(all elements) of what is touched."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def place_all(self, tensors: Mapping[str, torch.Tensor]) -> None:
        loaded = self._load(tensors)
        missing = sorted({name for name, _ in self._model.named_parameters()} - loaded)
        if missing:
            raise SyncError(
                f"{len(missing)} parameters of the live model are not in these weights, such as {missing[0]!r}; "
                "publish every parameter of the same architecture"
            )

    def place_changes(self, changes: Sequence[Change]) -> None:
        load_checkpoint_weight_patches(self._model, [_patch(change) for change in changes])

    def reached(self, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        return [name for name, copies in self._copies(tensors) if copies]

    def differing(self, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        """A tensor that vLLM passes over is not served, so it differs."""
        return [name for name, copies in self._copies(tensors) if not copies or not all(copies)]

    def _copies(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, list[bool]]]:
        """For each tensor, whether each of the copies that vLLM would make of it finds the same bits there."""
        found: list[bool] = []

        def compare(live: torch.Tensor, wire: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
            found.append(_same(live, wire))
            return live

        for name, tensor in tensors.items():
            found.clear()
            with _copies_replaced_by(compare):
                self._load({name: tensor})
            yield name, list(found)

    def _load(self, tensors: Mapping[str, torch.Tensor]) -> set[str]:
        load_weights: Any = self._model.load_weights
        with torch.no_grad():
            return set(load_weights(tensors.items()))


def _patch(change: Change) -> CheckpointWeightPatch:
    dtype = DTYPES[change.spec.dtype]
    return CheckpointWeightPatch(change.spec.name, change.spec.shape, dtype, change.new.view(dtype), change.indices)


def _same(live: torch.Tensor, wire: torch.Tensor) -> bool:
    if live.shape != wire.shape:
        return False
    there = wire.to(live.device)
    if live.dtype == wire.dtype:
        return torch.equal(bits(live), bits(there))
    return torch.equal(bits(live.double()), bits(there.double()))


@contextmanager
def _copies_replaced_by(function: Callable[..., torch.Tensor]) -> Iterator[None]:
    """vLLM's loaders end in `copy_`, which vLLM's own sparse loader replaces in the same way."""
    tensor: Any = torch.Tensor
    original = tensor.copy_
    tensor.copy_ = function
    try:
        yield
    finally:
        tensor.copy_ = original
