"""TRL's rollout child with our requests and rewards: what it sends and scores, how it waits and ends; no vLLM."""

import math
import multiprocessing
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import PartialState
from datasets import Dataset
from transformers import AutoTokenizer

from shared.errors import SyncError
from tests.trainer_box import children
from tests.trainer_box.fake_space import KEY, Answer, FakeSpace
from trainer_box.reward import Reward
from trainer_box.tiny_policy import tiny_policy_path

# isort: off
# the adapter comes first, so that TRL is imported without vLLM
from trainer_box.trl_adapter import RolloutLoop, RolloutWorker
from trl.experimental.async_grpo.async_rollout_worker import RolloutGroup, RolloutSample, TrainingSequence
# isort: on

MODEL = str(tiny_policy_path())
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.mark.slow
def test_the_adapter_and_a_rollout_child_are_imported_without_vllm() -> None:
    """The child finds its function by name, so the module that holds it is the first that it imports."""
    code = (
        "import sys, pickle\n"
        "from trainer_box import trl_adapter\n"
        "target = pickle.dumps(trl_adapter.async_rollout_worker._child_main)\n"
        "assert target.count(b'trainer_box.trl_adapter') == 1 and b'trl.' not in target, target\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'vllm'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "[]\n", done.stderr


# The rollout loop, in a thread instead of a child.


class Guess:
    """Whoever ends the turn without a guess has not solved it."""

    def reset(self, **row: Any) -> str:
        return " Go."

    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: Any.
        """
        return "wrong"

    def get_reward(self) -> Reward:
        return Reward(0.25, {"solved": 0.0, "tries": 1.0})


class PlainGuess(Guess):
    def get_reward(self) -> float:  # type: ignore[override]
        return 0.5


def make_loop(url: str, tokenizer: Any, environment: type[Guess] | None = Guess, rewards: Any = ()) -> RolloutLoop:
    PartialState()  # TRL's child makes it before its loop, which logs through it
    return RolloutLoop(
        model_name="tiny",
        dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "Hello."}]}]),
        reward_funcs=list(rewards),
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        rollout_buffer=queue.Queue(),
        model_version_value=SimpleNamespace(value=0),
        heartbeat_value=SimpleNamespace(value=0.0),
        failed_event=threading.Event(),
        exception_info_queue=queue.Queue(),
        metrics_queue=queue.Queue(),
        environment_factory=environment,
        num_generations=2,
        max_inflight_tasks=4,
        vllm_server_url=url,
        chat_template_kwargs={"enable_thinking": False},
        patience_s=DEADLINE_S,
    )


@contextmanager
def running(loop: RolloutLoop) -> Iterator[None]:
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield
    finally:
        if not loop._loop.is_closed():
            loop._loop.call_soon_threadsafe(loop._stop_event.set)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_rollouts_carry_the_key_and_the_parts_of_their_rewards(space: FakeSpace, tokenizer: Any) -> None:
    space.complete = lambda body: ([tokenizer.eos_token_id], [-1.0])
    loop = make_loop(space.url, tokenizer)
    with running(loop):
        samples = [loop.rollout_buffer.get(timeout=DEADLINE_S) for _ in range(4)]
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in space.headers)
    assert all(body["model"] == "tiny" and body["return_token_ids"] for body in space.completions)
    for found in samples:
        assert found.metrics["reward"] == 0.25
        assert found.metrics["environment/solved"] == 0.0
        assert found.metrics["environment/tries"] == 1.0
        assert found.prompt[0]["content"] == "Hello. Go."


@pytest.mark.parametrize("status", [400, 401, 403, 422])
def test_an_answer_that_no_retry_can_mend_ends_the_rollouts_in_one_sentence(
    space: FakeSpace, tokenizer: Any, status: int
) -> None:
    space.fixed["/v1/completions"] = Answer(status, {"error": "no such model"})
    loop = make_loop(space.url, tokenizer)
    with running(loop):
        name, message, _ = loop._exception_info_queue.get(timeout=DEADLINE_S)
    assert name == "SyncError"
    assert message == f'{space.url}/v1/completions answered HTTP {status}: {{"error": "no such model"}}'
    assert len(space.headers) <= 4, "none was asked twice"


def test_rollouts_wait_for_a_space_that_is_away_and_go_on(
    space: FakeSpace, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_box.rollout_requests._FIRST_DELAY_S", 0.001)
    monkeypatch.setattr("trainer_box.rollout_requests._LONGEST_DELAY_S", 0.001)
    space.complete = lambda body: ([tokenizer.eos_token_id], [-1.0])
    space.fixed["/v1/completions"] = Answer(503, {"error": "dirty"})
    loop = make_loop(space.url, tokenizer)
    with running(loop):
        end = time.monotonic() + DEADLINE_S
        while len(space.headers) < 200 and time.monotonic() < end:  # TRL alone would have given up
            time.sleep(0.01)
        space.fixed.clear()
        assert loop.rollout_buffer.get(timeout=DEADLINE_S).metrics["reward"] == 0.25
        metrics = [loop._metrics_queue.get(timeout=DEADLINE_S)]
    metrics += list(loop._metrics_queue.queue)
    assert sum(found.get("rollout/vllm_retry_total", 0) for found in metrics) >= 196


def test_a_space_that_stays_away_ends_the_rollouts_in_one_sentence(
    space: FakeSpace, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_box.rollout_requests._FIRST_DELAY_S", 0.001)
    space.fixed["/v1/completions"] = Answer(503, {"error": "dirty"})
    loop = make_loop(space.url, tokenizer)
    loop._patience._limit_s = 0.05
    with running(loop):
        name, message, _ = loop._exception_info_queue.get(timeout=DEADLINE_S)
    assert name == "SyncError"
    assert message == f'{space.url} gave no answer for 0 s; the last time: HTTP 503: {{"error": "dirty"}}'


def score(loop: RolloutLoop, group: RolloutGroup) -> list[RolloutSample]:
    try:
        samples: list[RolloutSample] = loop._loop.run_until_complete(loop._score_group(group))
        return samples
    finally:
        loop._tool_pool.shutdown()
        loop._loop.close()


def group_of(rows: Sequence[int], rewards: Sequence[Any]) -> RolloutGroup:
    """Conversations that made the given numbers of training rows."""
    count, row = len(rows), TrainingSequence([1, 2], [0, 1], [0.0, -1.0], "x")
    return RolloutGroup(
        prompts=[[{"role": "user", "content": str(i)}] for i in range(count)],
        reward_kwargs={},
        completions=[[{"role": "assistant", "content": "x"}]] * count,
        completions_ids=[[1]] * count,
        completions_sequences=[[row] * n for n in rows],
        tool_call_counts=[0] * count,
        tool_failure_counts=[0] * count,
        model_version=0,
        group_id=0,
        env_rewards=list(rewards),
        rollout_rewards=[None] * count,
    )


def test_every_row_of_a_conversation_gets_its_own_parts(tokenizer: Any) -> None:
    rewards = [(Guess, Reward(1.0, {"solved": 1.0})), (Guess, Reward(0.0, {"solved": 0.0})), (Guess, None)]
    samples = score(make_loop("http://unused", tokenizer), group_of([2, 0, 1], rewards))
    assert [found.prompt[0]["content"] for found in samples] == ["0", "0", "2"]
    assert [found.metrics.get("environment/solved") for found in samples] == [1.0, 1.0, None]
    assert math.isnan(samples[2].metrics["reward"])


def test_games_without_a_reward_are_counted(tokenizer: Any) -> None:
    loop = make_loop("http://unused", tokenizer)
    score(loop, group_of([1, 1, 1], [(Guess, None), (Guess, Reward(0.0, {})), (Guess, None)]))
    assert loop._counters["environment/unscorable_total"] == 2


def test_a_reward_that_is_a_plain_number_has_no_parts(tokenizer: Any) -> None:
    samples = score(make_loop("http://unused", tokenizer, PlainGuess), group_of([1, 1], [(PlainGuess, 0.5)] * 2))
    assert [found.metrics["reward"] for found in samples] == [0.5, 0.5]
    assert not any(name.startswith("environment/") for found in samples for name in found.metrics)


def test_without_an_environment_the_reward_functions_score_alone(tokenizer: Any) -> None:
    def reward(completions: list[Any], **columns: Any) -> list[float]:
        return [2.0] * len(completions)

    loop = make_loop("http://unused", tokenizer, None, [reward])
    assert [found.metrics["rewards/reward"] for found in score(loop, group_of([1, 1], []))] == [2.0, 2.0]


# The handle on the child.


def test_the_child_learns_how_long_to_wait() -> None:
    worker = RolloutWorker()
    worker.wait_at_most(120)
    assert worker._loop_kwargs["patience_s"] == 120


def test_what_the_child_cannot_be_given_is_one_sentence() -> None:
    worker = RolloutWorker(environment_factory=lambda: None)
    with pytest.raises(SyncError, match="the rollouts could not start: .*must be picklable"):
        worker.start()


def test_a_child_that_failed_is_told_in_one_sentence() -> None:
    worker = RolloutWorker()
    worker._exception_info_queue.put(("SyncError", "http://x answered HTTP 401: no key", "Traceback ..."))
    worker._failed_event.set()
    with pytest.raises(SyncError) as caught:
        wait_for_info(worker)
        worker.check_health(300)
    assert str(caught.value) == "the rollouts stopped: http://x answered HTTP 401: no key"


def wait_for_info(worker: RolloutWorker) -> None:
    """A queue between processes delivers a moment later."""
    assert worker._exception_info_queue._reader.poll(DEADLINE_S)


def ended_process(target: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    process.join(DEADLINE_S)
    assert process.exitcode == 7
    return process


def test_a_worker_whose_child_died_can_be_stopped() -> None:
    worker = RolloutWorker()
    worker._process = ended_process(children.die_while_a_thread_waits, worker._stop_event_mp)
    stopping = threading.Thread(target=worker.stop, daemon=True)
    stopping.start()
    stopping.join(DEADLINE_S)
    assert not stopping.is_alive()


def test_a_child_that_is_gone_without_a_word_is_noticed_at_once() -> None:
    worker = RolloutWorker()
    worker._heartbeat_value.value = 2e9
    worker.check_health(300)
    worker._process = ended_process(children.end_at_once, 7)
    with pytest.raises(SyncError, match="the rollouts stopped: their process ended with exit code 7"):
        worker.check_health(300)
