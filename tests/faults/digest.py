"""One text for the bits of a whole set of weights."""

import hashlib
from collections.abc import Mapping

import torch

from shared.bits import bits


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Equal for the same names, shapes and bits only."""
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        found.update(f"{name} {tuple(tensor.shape)} ".encode())
        found.update(bits(tensor).numpy().tobytes())
    return found.hexdigest()
