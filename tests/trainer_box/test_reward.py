"""A reward is a number to whoever does not ask for its parts."""

import numpy as np

from trainer_box.reward import Reward


def test_a_reward_counts_as_the_number_that_it_is() -> None:
    reward = Reward(0.75, {"solved": 1.0})
    assert reward == 0.75
    assert np.array([reward, 0.25], dtype=float).sum() == 1.0


def test_the_parts_are_a_copy() -> None:
    parts = {"solved": 1.0}
    reward = Reward(0.75, parts)
    parts["solved"] = 0.0
    assert reward.parts == {"solved": 1.0}
