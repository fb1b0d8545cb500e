"""The seam between wire weights and the live model: values go in and are compared, in checkpoint names.

Says what a receiver needs; how it is done is for the modules that know vLLM.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from shared.changes import Change


class Placement(Protocol):
    """Either method of placing may raise anything and leave part of the values behind."""

    def place_all(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write whole weights."""

    def place_changes(self, changes: Sequence[Change]) -> None:
        """Write the changed elements, `new` bits at `indices`."""

    def reached(self, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        """The names that the live model takes values from; nothing is written."""

    def differing(self, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        """The names whose values are not those in the live model, bit for bit after an exact cast."""
