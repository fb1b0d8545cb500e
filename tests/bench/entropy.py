"""How few bytes a change can take when neither which elements change nor by how much can be guessed.

Per tensor: the entropy of as many changes at places of pure chance, plus that of the differences as they are
distributed in it. An encoding that knows more (which weights are small, which rows were used) can take less.
"""

from collections.abc import Iterable

import numpy as np

from shared.changes import Change


def entropy_bytes(changes: Iterable[Change]) -> float:
    """Of all changes together, in bytes."""
    return sum(positions_bits(change) + differences_bits(change) for change in changes) / 8


def positions_bits(change: Change) -> float:
    count, elements = change.count, change.spec.numel
    return elements * _bits_each(np.array([count, elements - count]))


def differences_bits(change: Change) -> float:
    difference = (change.new - change.old).numpy()
    return change.count * _bits_each(np.unique(difference, return_counts=True)[1])


def _bits_each(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / counts.sum()
    return -float((shares * np.log2(shares)).sum())
