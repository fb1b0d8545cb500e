"""From rewards to a verdict: what counts as learned."""

import math

import pytest

from shared.learning import Learning, learning


def rising(count: int, by: float) -> list[float | None]:
    return [by * i / count + (0.05 if i % 2 else -0.05) for i in range(count)]


def test_a_clear_rise_is_learning_and_a_flat_or_falling_reward_is_not() -> None:
    for by, learned in ((1.0, True), (0.0, False), (-1.0, False)):
        outcome = learning(rising(60, by))
        assert outcome is not None
        assert outcome.learned is learned


def test_first_last_and_their_standard_error_are_those_of_ten_steps_each() -> None:
    outcome = learning([0.0, 2.0] * 5 + [50.0] * 20 + [3.0, 5.0] * 5)
    assert outcome is not None
    assert (outcome.first, outcome.last) == (1.0, 4.0)
    assert outcome.standard_error == pytest.approx(math.sqrt((10 / 9 + 10 / 9) / 10))


def test_a_rise_within_twice_the_standard_error_is_not_learning() -> None:
    just_under, just_over = Learning(0.0, 0.199, 0.1), Learning(0.0, 0.201, 0.1)
    assert not just_under.learned
    assert just_over.learned


def test_under_forty_steps_there_is_no_verdict() -> None:
    assert learning(rising(39, 1.0)) is None
    assert learning(rising(40, 1.0)) is not None


@pytest.mark.parametrize("lost", [None, math.nan])
def test_steps_without_a_reward_do_not_count(lost: float | None) -> None:
    assert learning([*rising(39, 1.0), lost]) is None
    assert learning([lost, *rising(40, 1.0), lost]) == learning(rising(40, 1.0))
