"""The trainee moves as AdamW does, from weights that are the same everywhere."""

import torch

from tests.bench.steps import SMALLEST, shapes_of
from tests.bench.trainee import Trainee, initial

SHAPES = shapes_of(SMALLEST)


def test_a_trainee_begins_with_the_weights_that_every_process_has() -> None:
    begun = dict(Trainee(SHAPES, 1e-6).named())
    assert begun.keys() == SHAPES.keys()
    assert all(torch.equal(tensor, begun[name]) for name, tensor in initial(SHAPES))


def test_no_weight_moves_by_more_than_the_learning_rate_and_most_move() -> None:
    trainee = Trainee(SHAPES, 1e-4)
    before = {name: tensor.clone() for name, tensor in trainee.named()}
    trainee.step()
    moved = torch.cat([(tensor - before[name]).abs().reshape(-1) for name, tensor in trainee.named()])
    assert float(moved.max()) <= 1.01e-4  # float32 rounds
    assert float((moved > 0).float().mean()) > 0.9


def test_two_steps_go_in_different_directions() -> None:
    trainee = Trainee({"weight": (64, 64)}, 1e-4)
    ((_, weight),) = trainee.named()
    begun = weight.clone()
    trainee.step()
    first = weight - begun
    begun = weight.clone()
    trainee.step()
    assert not torch.allclose(first, weight - begun)
