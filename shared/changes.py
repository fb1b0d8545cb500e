"""The changed elements of one tensor, in the two forms they take: decoded from a file, and resolved on a base."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from shared import fingerprint
from shared.errors import IntegrityError
from shared.types import TensorSpec


@dataclass(frozen=True)
class Change:
    """Elements of one tensor that differ: `indices` int64 [n], strictly increasing; `old` and `new` bits [n] each."""

    spec: TensorSpec
    indices: torch.Tensor
    old: torch.Tensor
    new: torch.Tensor

    @property
    def count(self) -> int:
        return self.indices.numel()


@dataclass(frozen=True)
class Patch:
    """What a delta file says of one tensor: `payload` holds the new bits [n], or what is to be added to the base's."""

    spec: TensorSpec
    indices: torch.Tensor
    payload: torch.Tensor
    relative: bool

    def on(self, base: torch.Tensor) -> Change:
        """The change that this patch makes to the flat bits `base` of the whole tensor."""
        indices, payload = self.indices.to(base.device), self.payload.to(base.device)
        old = base[indices]
        return Change(self.spec, indices, old, old + payload if self.relative else payload)


def check_indices(spec: TensorSpec, indices: torch.Tensor) -> None:
    """Raises IntegrityError unless the int64 `indices` [n] are strictly increasing and within the tensor."""
    if not indices.numel():
        return
    ordered = bool((indices[1:] > indices[:-1]).all())
    if not ordered or int(indices[0]) < 0 or int(indices[-1]) >= spec.numel:
        raise IntegrityError(f"{spec.name}: indices are not strictly increasing within {spec.numel} elements")


def fingerprint_gain(changes: Iterable[Change]) -> int:
    """What the fingerprint of the weights gains by these changes, modulo 2**64."""
    return sum(fingerprint.change(change.spec, change.indices, change.old, change.new) for change in changes)
