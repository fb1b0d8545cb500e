"""What the rollouts' requests wait out, for how long, and what ends them at once."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from shared.errors import SyncError
from shared.types import Json
from tests.trainer_box.fake_space import CUT_OFF, KEY, Answer, FakeSpace
from tests.trainer_box.redirecting import redirecting
from trainer_box.rollout_requests import PassingError, Patience, post

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


def test_a_redirect_is_not_followed(space: FakeSpace) -> None:
    with redirecting(space.url) as url, pytest.raises(PassingError, match="HTTP 307"):
        asked(url)
    assert space.headers == []


@pytest.mark.parametrize("status", [400, 401, 403, 422])
def test_a_refusal_is_final(space: FakeSpace, status: int) -> None:
    space.fixed["/v1/completions"] = Answer(status, {"error": "no"})
    with pytest.raises(SyncError, match=f'/v1/completions answered HTTP {status}: {{"error": "no"}}') as caught:
        asked(space.url)
    assert KEY not in str(caught.value)


CHOICE = {"finish_reason": "stop", "token_ids": [7, 8], "logprobs": {"token_logprobs": [-1.0, -2]}}
ODD_TOKENS: tuple[Any, ...] = (None, "78", [7], [7, 8, 9], [7, "8"], [7, True])
ODD_LOGPROBS: tuple[Any, ...] = (None, [], {}, {"token_logprobs": [-1.0, None]})
BROKEN: list[Any] = [
    *("<html>starting</html>", "", "{broken", "null", "[" * 100_000),
    *({}, [], {"error": "overloaded"}, {"choices": None}, {"choices": {}}, {"choices": []}, {"choices": [None]}),
    *({"choices": [CHOICE, {**CHOICE, "finish_reason": odd}]} for odd in ("abort", None)),
    *({"choices": [{**CHOICE, "token_ids": odd}]} for odd in ODD_TOKENS),
    *({"choices": [{**CHOICE, "logprobs": odd}]} for odd in ODD_LOGPROBS),
    {"choices": [{**CHOICE, "logprobs": {"token_logprobs": [-1.0, math.nan]}}]},
]


@pytest.mark.parametrize("body", BROKEN)
def test_an_answer_that_is_not_whole_is_one_that_may_pass(space: FakeSpace, body: Any) -> None:
    space.fixed["/v1/completions"] = Answer(200, body)
    with pytest.raises(PassingError, match=r"^HTTP 200: .*\(.*\)$"):
        asked(space.url)


def test_a_whole_answer_is_passed_on_as_it_is(space: FakeSpace) -> None:
    space.fixed["/v1/completions"] = Answer(200, {"id": "x", "choices": [CHOICE]})
    assert asked(space.url) == {"id": "x", "choices": [CHOICE]}


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
def test_what_may_pass_is_left_to_the_patient(space: FakeSpace, status: int) -> None:
    space.fixed["/v1/completions"] = Answer(status, {"error": "dirty"})
    with pytest.raises(PassingError, match=f'^HTTP {status}: {{"error": "dirty"}}$'):
        asked(space.url)


def test_a_space_that_is_not_there_for_a_moment_may_pass(space: FakeSpace) -> None:
    space.fixed["/v1/completions"] = Answer(404, "<html>\nbuilding\n</html>")
    with pytest.raises(PassingError, match="^HTTP 404: <html> building </html>; check that .* address of the vLLM"):
        asked(space.url)


def test_an_answer_that_is_cut_may_pass(space: FakeSpace) -> None:
    space.fixed["/v1/completions"] = Answer(CUT_OFF)
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


def test_a_space_that_is_away_is_asked_until_it_answers(capfd: pytest.CaptureFixture[str]) -> None:
    requests = Requests(*[away() for _ in range(50)], TimeoutError(), ConnectionResetError())
    assert ask(Patience("http://x", 30), requests) == [ANSWER]
    assert requests.retries == 52
    assert capfd.readouterr().out.splitlines() == [
        "rollouts wait for http://x: ClientConnectionError: refused",
        "rollouts go on with http://x: it answers again",
    ]


def test_many_requests_that_wait_say_so_once(capfd: pytest.CaptureFixture[str]) -> None:
    ask(Patience("http://x", 30), *[Requests(*[away() for _ in range(3)]) for _ in range(20)])
    assert capfd.readouterr().out.count("rollouts wait for") == 1


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


class Slow(Requests):
    """Each takes its time, on a clock that the test has."""

    def __init__(self, clock: list[float], seconds: float, *failures: Exception) -> None:
        super().__init__(*failures)
        self.clock, self.seconds = clock, seconds

    async def __call__(self) -> Json:
        self.clock[0] += self.seconds
        return await super().__call__()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("trainer_box.rollout_requests.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_request_without_an_answer_in_its_own_time_counts_from_its_start(clock: list[float]) -> None:
    requests = Slow(clock, 4.0, *[TimeoutError()] * 9)
    with pytest.raises(SyncError, match="gave no answer for 12 s; the last time: TimeoutError"):
        ask(Patience("http://x", 10), requests)
    assert requests.retries == 2


def test_a_long_request_that_is_cut_does_not_spend_the_patience_at_once(clock: list[float]) -> None:
    """It was answered until then, as far as anybody knows."""
    assert ask(Patience("http://x", 10), Slow(clock, 60.0, away())) == [ANSWER]


def test_a_space_that_answered_others_meanwhile_was_there(clock: list[float]) -> None:
    async def answered_meanwhile() -> Json:
        clock[0] += 8.0
        await patience.ask(Requests(), lambda: None)
        clock[0] += 8.0
        raise TimeoutError

    patience = Patience("http://x", 10)
    requests: Iterator[Callable[[], Awaitable[Json]]] = iter([answered_meanwhile, Requests()])
    assert asyncio.run(patience.ask(lambda: next(requests)(), lambda: None)) == ANSWER


def test_a_refusal_is_not_waited_out() -> None:
    requests = Requests(SyncError("HTTP 401"))
    with pytest.raises(SyncError, match="HTTP 401"):
        ask(Patience("http://x", 30), requests)
    assert requests.retries == 0


def test_a_bug_is_not_waited_out() -> None:
    with pytest.raises(KeyError):
        ask(Patience("http://x", 30), Requests(KeyError("choices")))
