"""The smoke check against a real environment and a stand-in for vLLM, with the keys that both ask for."""

from collections.abc import Iterator

import pytest

from shared.errors import SyncError
from tests.space_env.server import running
from tests.trainer_box.fake_space import KEY, Answer, FakeSpace, fake_space
from trainer_box.deploy import smoke
from trainer_box.deploy.plan import deployment, smoke_cost


@pytest.fixture(scope="module")
def env_url() -> Iterator[str]:
    with running(api_key=KEY) as url:
        yield url


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setenv("ENV_API_KEY", KEY)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with fake_space("tiny", key=KEY) as server:
        yield server


def test_a_fleet_that_works_is_told_in_three_lines(space: FakeSpace, env_url: str) -> None:
    told: list[str] = []
    smoke.check(space.url, env_url, "tiny", told.append)
    assert [line.split(",")[0] for line in told[:1]] == ["smoke: vLLM serves version 0"]
    assert told[1].startswith("smoke: vLLM answered 16 tokens in ")
    assert told[2].startswith("smoke: the environment played a game, reward ")
    assert space.completions[0]["model"] == "tiny"
    assert KEY not in "".join(told)


def failure(space: FakeSpace, env_url: str, model: str = "tiny") -> str:
    with pytest.raises(SyncError) as caught:
        smoke.check(space.url, env_url, model, lambda line: None)
    return str(caught.value)


def test_another_model_is_told_with_both_names(space: FakeSpace, env_url: str) -> None:
    assert "serves tiny, not large; look at its variable MODEL" in failure(space, env_url, "large")


def test_a_completion_that_fails_is_told_with_its_status(space: FakeSpace, env_url: str) -> None:
    space.fixed["/v1/completions"] = Answer(500)
    assert "answered HTTP 500 to a completion" in failure(space, env_url)


def test_an_environment_that_refuses_the_key_is_a_sentence(
    space: FakeSpace, env_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENV_API_KEY", "wrong")
    sentence = failure(space, env_url)
    assert sentence.startswith(f"smoke: a game at {env_url} failed: ")
    assert "wrong" not in sentence


def test_the_cost_is_said_beforehand() -> None:
    plan = deployment("user", "m", "l40sx1")
    assert "about 0.15 USD for 5 minutes (1.80 USD per hour)" in smoke_cost(plan)
