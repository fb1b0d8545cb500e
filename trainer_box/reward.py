"""A reward that says what it is made of. TRL sees a float; the parts are logged beside it."""

from collections.abc import Mapping
from typing import Self


class Reward(float):
    """What an environment's `get_reward` may return to have named parts, such as `solved`, averaged per step."""

    parts: Mapping[str, float]

    def __new__(cls, value: float, parts: Mapping[str, float]) -> Self:
        reward = super().__new__(cls, value)
        reward.parts = dict(parts)
        return reward
