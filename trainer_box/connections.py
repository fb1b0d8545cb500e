"""What a run needs besides a model: its bucket, the vLLM Space and the environment, opened, woken up and checked.

Knows in which order; the checks themselves are in `trainer_box.preflight`.
"""

import os
from dataclasses import dataclass

from shared.bucket import LOCAL, Bucket, open_bucket
from shared.bucket.private import ensure_private
from shared.output import say
from trainer_box import answer_limit, preflight
from trainer_box.arguments import ScriptArguments
from trainer_box.preflight import Expected
from trainer_box.replica import Replica
from trainer_box.trl_adapter import TrainingConfig


@dataclass(frozen=True)
class Connections:
    """`spaces` are the ids on the Hub of the Spaces among the units."""

    bucket: Bucket
    replica: Replica
    spaces: tuple[str, ...]


def connect(script: ScriptArguments, training: TrainingConfig) -> Connections:
    """Raises SyncError. What TRL would ask the server without a key, it is told instead: the longest row."""
    bucket, replica = open_for_writing(script.bucket), Replica(script.vllm_url)
    deadline_s, in_flight = training.vllm_server_timeout, rollouts_in_flight(training)
    replica.problem()  # a Space that sleeps wakes up behind the other one
    statuses = []
    if script.env_url:
        statuses.append(preflight.check_environment(script.env_url, in_flight, deadline_s, say))
    say(f"waiting for vLLM at {replica.url}, {deadline_s:.0f} s at most")
    expected = Expected(script.model, bucket.name, script.run_id, in_flight)
    statuses.append(preflight.check_replica(replica, expected, deadline_s, say))
    answer_limit.check(replica.url, script.model, in_flight, training.max_completion_length, say)
    training.vllm_server_base_url = replica.url
    if training.token_budget is None:
        training.token_budget = replica.longest_row(script.model)
    spaces = tuple(str(status["space"]) for status in statuses if status.get("space"))
    return Connections(bucket, replica, spaces)


def open_for_writing(name: str) -> Bucket:
    """A bucket on the Hub is made when it is missing, private; a public one is refused. Raises BucketError."""
    token = os.environ.get("HF_TOKEN")
    bucket = open_bucket(name, token=token)
    if not name.startswith(LOCAL) and ensure_private(name, token):
        say(f"bucket {name} was missing and has been made, private")
    preflight.check_bucket(bucket)
    return bucket


def rollouts_in_flight(training: TrainingConfig) -> int:
    """As TRL counts them where they are not given."""
    given: int = training.max_inflight_tasks
    per_step: int = training.per_device_train_batch_size * training.gradient_accumulation_steps
    staleness: int = training.max_staleness
    return given if given >= 0 else max(staleness, 1) * per_step
