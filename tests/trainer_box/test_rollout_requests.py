"""What the rollouts' requests wait out, for how long, and what ends them at once."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from shared.errors import SyncError
from shared.types import Json
from tests.trainer_box.fake_space import CUT_OFF, KEY, Answer, FakeSpace
from trainer_box.rollout_requests import Patience, post

ANSWER: Json = {"choices": [{"finish_reason": "stop"}]}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_box.rollout_requests._FIRST_DELAY_S", 0.001)
    monkeypatch.setattr("trainer_box.rollout_requests._LONGEST_DELAY_S", 0.004)


def asked(url: str) -> Json:
    async def ask() -> Json:
        async with aiohttp.ClientSession() as session:
            return await post(session, f"{url}/v1/completions", {"prompt": [1]}, 30)

    return asyncio.run(ask())


def test_a_request_carries_the_key(space: FakeSpace) -> None:
    assert asked(space.url)["choices"][0]["token_ids"] == [7]
    assert space.headers[-1]["Authorization"] == f"Bearer {KEY}"
    assert space.completions == [{"prompt": [1]}]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_final(space: FakeSpace, status: int) -> None:
    space.fixed["/v1/completions"] = Answer(status, {"error": "no"})
    with pytest.raises(SyncError, match=f'/v1/completions answered HTTP {status}: {{"error": "no"}}') as caught:
        asked(space.url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(503, {"error": "dirty"}),
        Answer(500),
        Answer(429),
        Answer(CUT_OFF),
        Answer(200, "<html>starting</html>"),
        Answer(200, {"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}),
    ],
)
def test_what_may_pass_is_left_to_the_patient(space: FakeSpace, answer: Answer) -> None:
    space.fixed["/v1/completions"] = answer
    with pytest.raises(aiohttp.ClientError):
        asked(space.url)


class Requests:
    """Answers after a number of failures."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.retries = 0

    async def __call__(self) -> Json:
        if self.failures:
            raise self.failures.pop(0)
        return ANSWER

    def count(self) -> None:
        self.retries += 1


def ask(patience: Patience, *requests: Requests) -> list[Json]:
    async def all_of_them() -> list[Json]:
        return await asyncio.gather(*(patience.ask(request, request.count) for request in requests))

    return asyncio.run(all_of_them())


def away() -> Exception:
    return aiohttp.ClientConnectionError("refused")


def test_a_space_that_is_away_is_asked_until_it_answers(capsys: pytest.CaptureFixture[str]) -> None:
    requests = Requests(*[away() for _ in range(50)], TimeoutError(), ConnectionResetError())
    assert ask(Patience("http://x", 30), requests) == [ANSWER]
    assert requests.retries == 52
    assert capsys.readouterr().out.splitlines() == [
        "rollouts wait for http://x: ClientConnectionError: refused",
        "rollouts go on with http://x: it answers again",
    ]


def test_many_requests_that_wait_say_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    ask(Patience("http://x", 30), *[Requests(*[away() for _ in range(3)]) for _ in range(20)])
    assert capsys.readouterr().out.count("rollouts wait for") == 1


def test_a_space_that_stays_away_ends_the_rollouts_in_a_sentence() -> None:
    with pytest.raises(SyncError, match="http://x gave no answer for 0 s; the last time: ClientConnectionError: ref"):
        ask(Patience("http://x", 0.01), Requests(*[away() for _ in range(10_000)]))


def test_the_time_of_an_answer_does_not_count_as_away() -> None:
    """A request may take longer than the limit, as long as it does not fail."""

    async def slow() -> Json:
        await asyncio.sleep(0.05)
        return ANSWER

    patience, answers = Patience("http://x", 0.01), list[Json]()
    failures = iter([away(), None])

    async def failing_once_then_slow() -> Json:
        if (failure := next(failures)) is not None:
            raise failure
        return await slow()

    requests: list[Callable[[], Awaitable[Json]]] = [slow, failing_once_then_slow]
    for request in requests:
        answers.append(asyncio.run(patience.ask(request, lambda: None)))
    assert answers == [ANSWER, ANSWER]


def test_a_refusal_is_not_waited_out() -> None:
    requests = Requests(SyncError("HTTP 401"))
    with pytest.raises(SyncError, match="HTTP 401"):
        ask(Patience("http://x", 30), requests)
    assert requests.retries == 0


def test_a_bug_is_not_waited_out() -> None:
    with pytest.raises(KeyError):
        ask(Patience("http://x", 30), Requests(KeyError("choices")))
