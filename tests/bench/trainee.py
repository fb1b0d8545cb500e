"""A model that is trained without a gradient: float32 weights of realistic scale, moved as AdamW moves them.

Weights are N(0, 0.02), norms 1; directions N(0, 0.3), clipped at 1. Knows nothing of who is told.
"""

from collections.abc import Iterator

import torch

from tests.bench.steps import Shapes

_NOISE = 1 << 22  # directions, drawn once; each piece of a tensor takes them from another place on


def initial(shapes: Shapes) -> Iterator[tuple[str, torch.Tensor]]:
    """The same in every process."""
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        yield name, torch.randn(shape, generator=generator).mul_(0.02) if len(shape) > 1 else torch.ones(shape)


class Trainee:
    """`named` gives the float32 weights by name, as a trainer hands them to its publisher."""

    def __init__(self, shapes: Shapes, learning_rate: float) -> None:
        self._weights = dict(initial(shapes))
        self._learning_rate = learning_rate
        self._generator = torch.Generator().manual_seed(1)
        self._directions = torch.randn(2 * _NOISE, generator=self._generator).mul_(0.3).clamp_(-1, 1)

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._weights.items())

    def step(self) -> None:
        for tensor in self._weights.values():
            for piece in tensor.view(-1).split(_NOISE):
                start = int(torch.randint(_NOISE, (1,), generator=self._generator))
                piece.sub_(self._directions[start : start + piece.numel()], alpha=self._learning_rate)
