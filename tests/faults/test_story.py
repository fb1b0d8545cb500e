"""A run's weights are told by the seed alone."""

import pytest

from tests.faults.digest import digest
from tests.faults.story import Story, following


def test_a_step_does_not_depend_on_the_order_of_the_tensors() -> None:
    weights = Story(1).weights(1)
    turned = dict(reversed(weights.items()))
    assert digest(following(turned, 1, 2)) == digest(Story(1).weights(2))
    assert list(following(turned, 1, 2)) == list(turned)


@pytest.mark.parametrize(("seed", "step"), [(2, 1), (1, 2)])
def test_other_seeds_and_other_steps_are_other_weights(seed: int, step: int) -> None:
    assert digest(Story(seed).weights(step)) != digest(Story(1).weights(1))
