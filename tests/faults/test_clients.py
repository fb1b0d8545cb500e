"""The judge of answers: it excuses a request that went on across a sync, and nothing else."""

import pytest

from tests.faults.clients import PROMPTS, TOKENS, Judge
from tests.faults.story import Story
from tests.space_vllm.tiny import Weights, greedy

TENSOR = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def story() -> Story:
    return Story(1)


def answer(*weights: Weights) -> tuple[int, ...]:
    """To the first prompt, an equal number of tokens under each of these, one after the other."""
    tokens: list[int] = []
    for number, one in enumerate(weights, start=1):
        tokens += greedy(one, PROMPTS[0] + tokens, TOKENS * number // len(weights) - len(tokens))
    return tuple(tokens)


def test_what_a_version_answers_is_verified(story: Story) -> None:
    old, new = story.weights(0), story.weights(1)
    assert Judge([old, new]).unverified([(0, answer(old)), (0, answer(new))]) == 0


def test_an_answer_may_go_on_with_a_later_version(story: Story) -> None:
    old, new = story.weights(0), story.weights(1)
    assert Judge([old, new]).unverified([(0, answer(old, new))]) == 0


def test_an_answer_never_goes_on_with_an_earlier_version(story: Story) -> None:
    old, new = story.weights(0), story.weights(1)
    assert Judge([old, new]).unverified([(0, answer(new, old))]) == TOKENS


def test_the_tokens_of_half_placed_weights_are_counted_each_time(story: Story) -> None:
    old, new = story.weights(0), story.weights(1)
    wrong = answer({**new, TENSOR: old[TENSOR]})
    assert Judge([old, new]).unverified([(0, answer(new)), (0, wrong), (0, wrong)]) == 2 * TOKENS


def test_the_tokens_of_a_version_that_was_not_published_are_counted(story: Story) -> None:
    assert Judge([story.weights(0)]).unverified([(0, answer(story.weights(2)))]) == TOKENS
