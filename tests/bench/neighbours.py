"""Changes of chosen density, at places of pure chance: each element goes to one of its neighbours."""

from collections.abc import Iterable

import torch

from shared.bits import bits, spec_of
from shared.changes import Change


def neighbours(weights: dict[str, torch.Tensor], density: float, generator: torch.Generator) -> list[Change]:
    """The same share of each tensor, and one element at least. Nothing is changed yet."""
    changes = []
    for name, tensor in weights.items():
        count = max(1, round(density * tensor.numel()))
        indices = torch.randint(tensor.numel(), (count,), generator=generator).unique()
        old = bits(tensor)[indices]
        changes.append(Change(spec_of(name, tensor), indices, old, old ^ 1))
    return changes


def place(weights: dict[str, torch.Tensor], changes: Iterable[Change]) -> None:
    for change in changes:
        bits(weights[change.spec.name]).scatter_(0, change.indices, change.new)
