"""On a Space, the longest completion that the proxy lets through is measured and said."""

from collections.abc import Iterator

import pytest

from shared.errors import SyncError
from tests.trainer_box.fake_space import KEY, Answer, FakeSpace, fake_space
from trainer_box import answer_limit

SPACE = "https://user-async-rl-vllm.hf.space"


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    with fake_space("tiny", key=KEY) as server:
        yield server


def check(monkeypatch: pytest.MonkeyPatch, rate: float, longest: int) -> list[str]:
    rates, told = {(SPACE, "tiny", 64): rate}, list[str]()
    monkeypatch.setattr(answer_limit, "slowest_rate", lambda *asked: rates[asked])
    answer_limit.check(SPACE, "tiny", 64, longest, told.append)
    return told


def test_the_longest_safe_completion_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = check(monkeypatch, 20.0, 900)
    assert line == (
        "64 answers at once come at 20 tokens/s or faster each, so a completion of up to 900 tokens is safe from the "
        "proxy at user-async-rl-vllm.hf.space, which cuts answers after about 60 s"
    )


def test_a_longer_one_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SyncError, match="may have 901 tokens, and the proxy .* would cut those over 900; lower"):
        check(monkeypatch, 20.0, 901)


def test_elsewhere_nothing_is_asked(space: FakeSpace) -> None:
    answer_limit.check(space.url, "tiny", 64, 10**6, lambda line: pytest.fail(line))
    assert space.headers == []


def test_as_many_are_asked_at_once_as_there_will_be_rollouts(space: FakeSpace) -> None:
    assert answer_limit.slowest_rate(space.url, "tiny", 8) > 0
    assert len(space.completions) == 8
    assert {(body["max_tokens"], body["ignore_eos"]) for body in space.completions} == {(32, True)}


def test_a_completion_that_fails_is_a_sentence(space: FakeSpace) -> None:
    space.fixed["/v1/completions"] = Answer(500)
    with pytest.raises(SyncError, match=f"vLLM at {space.url} gave no completion, but HTTP 500") as caught:
        answer_limit.slowest_rate(space.url, "tiny", 2)
    assert KEY not in str(caught.value)
