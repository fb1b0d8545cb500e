"""The seam between wire weights and the live model, in checkpoint names.

Says what a receiver needs; how it is done is for the modules that know vLLM.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from shared.changes import Change
from shared.types import TensorSpec

Weights = dict[str, torch.Tensor]


class Places(Protocol):
    """Where one set of tensors, by name, dtype and shape, lives in the live model.

    `load` and `write` may raise anything and leave part of the values behind.
    """

    def adopt(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take note that these whole weights are live already."""

    def rehearse(self) -> None:
        """Try what is done to adopted weights that are not written in place. Raises SyncError when it changes them."""

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write whole weights with the engine's own loader."""

    def write(self, changes: Sequence[Change]) -> None:
        """Write `new` bits at `indices`."""

    def undo(self, changes: Sequence[Change]) -> None:
        """Write `old` bits at `indices`, after a write of the same changes that may have broken off."""

    def admit(self, spec: TensorSpec, patterns: torch.Tensor) -> None:
        """Raises IntegrityError when the live parameter cannot hold one of these bit patterns."""

    def read(self, spec: TensorSpec, indices: torch.Tensor) -> torch.Tensor:
        """The live model's bits at `indices` (int64 [n], strictly increasing)."""

    def count(self, spec: TensorSpec, stopped: Callable[[], bool]) -> int | None:
        """The tensor's term of the fingerprint, counted from the live model; None when stopped."""

    def check(self) -> None:
        """Raises IntegrityError when live memory that no tensor reaches is not what it has to be."""

    def summary(self) -> dict[str, int]:
        """How many tensors are placed in which way."""


class LiveModel(Protocol):
    def base(self) -> Weights:
        """The base model's tensors as they are served: read from its files, cast where the live model is narrower."""

    def find(self, tensors: Mapping[str, torch.Tensor]) -> Places:
        """Nothing is written. Raises SyncError when the live model is not made of exactly these tensors."""

    def backup(self) -> Any:
        """A copy of all live memory, for `restore`."""

    def restore(self, backup: Any) -> None: ...

    def distrust(self) -> None:
        """From now on nothing is written in place; all goes through the engine's loader."""
