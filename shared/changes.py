"""The changed elements of one tensor, in the two forms they take: decoded from a file, and resolved on a base."""

from collections.abc import Iterable, Iterator
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

    def reversed(self) -> "Change":
        """What takes this change back."""
        return Change(self.spec, self.indices, old=self.new, new=self.old)

    def pieces(self, count: int) -> Iterator["Change"]:
        """The same, in order, as changes of at most `count` elements."""
        for part in zip(self.indices.split(count), self.old.split(count), self.new.split(count), strict=True):
            yield Change(self.spec, *part)


@dataclass(frozen=True)
class Patch:
    """What a delta file says of one tensor: `payload` holds the new bits [n], or what is to be added to the base's."""

    spec: TensorSpec
    indices: torch.Tensor
    payload: torch.Tensor
    relative: bool

    def on(self, base: torch.Tensor) -> Change:
        """The change that this patch makes to the flat bits `base` of the whole tensor."""
        return self.onto(base[self.indices.to(base.device)])

    def onto(self, old: torch.Tensor) -> Change:
        """The change that this patch makes to the bits `old` [n] of its elements."""
        indices, payload = self.indices.to(old.device), self.payload.to(old.device)
        return Change(self.spec, indices, old, old + payload if self.relative else payload)


def check_indices(spec: TensorSpec, indices: torch.Tensor) -> None:
    """Raises IntegrityError unless the int64 `indices` [n] are strictly increasing and within the tensor."""
    if not indices.numel():
        return
    falls = (indices[1:] <= indices[:-1]).nonzero()
    if falls.numel():
        before, after = indices[int(falls[0]) :][:2].tolist()
        raise IntegrityError(f"tensor {spec.name!r}: index {after} follows index {before}, but indices increase")
    for index in (int(indices[0]), int(indices[-1])):
        if not 0 <= index < spec.numel:
            raise IntegrityError(f"tensor {spec.name!r}: index {index} is outside of its {spec.numel} elements")


def fingerprint_gain(changes: Iterable[Change]) -> int:
    """What the fingerprint of the weights gains by these changes, modulo 2**64."""
    return sum(fingerprint.change(change.spec, change.indices, change.old, change.new) for change in changes)
