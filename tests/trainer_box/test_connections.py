"""Bucket and units of a run, opened and checked in one go: the real client of the Hub, a real environment."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import BucketError, SyncError
from tests.hub import StandIn, stand_in
from tests.space_env.server import running
from tests.trainer_box.fake_space import KEY, LONGEST_ROW, FakeSpace
from trainer_box.arguments import ScriptArguments
from trainer_box.connections import Connections, connect, open_for_writing, rollouts_in_flight
from trainer_box.trl_adapter import TrainingConfig

BUCKET = "user/new"


@pytest.fixture
def env_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ENV_API_KEY", KEY)
    monkeypatch.setenv("SPACE_ID", "user/env")
    with running(api_key=KEY) as url:
        yield url


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with stand_in() as running_hub:
        for name, value in running_hub.environment(tmp_path / "xet").items():
            monkeypatch.setenv(name, value)
        yield running_hub


@pytest.fixture
def training(tmp_path: Path) -> TrainingConfig:
    return TrainingConfig(output_dir=str(tmp_path), vllm_server_timeout=0.05, max_inflight_tasks=8)


def connected(space: FakeSpace, env_url: str, training: TrainingConfig, bucket: str) -> Connections:
    space.status["bucket"] = bucket
    script = ScriptArguments(model="tiny", vllm_url=f"{space.url}/", env_url=env_url, bucket=bucket, run_id="r")
    return connect(script, training)


def test_all_that_a_run_needs_is_opened(
    space: FakeSpace, env_url: str, training: TrainingConfig, tmp_path: Path
) -> None:
    space.status["space"] = "user/vllm"
    found = connected(space, env_url, training, f"local:{tmp_path}/bucket")
    assert (found.bucket.name, found.replica.url) == (f"local:{tmp_path}/bucket", space.url)
    assert found.spaces == ("user/env", "user/vllm")
    assert list((tmp_path / "bucket").iterdir()) == []


def test_trl_is_told_what_it_would_ask_the_server_without_a_key(
    space: FakeSpace, env_url: str, training: TrainingConfig, tmp_path: Path
) -> None:
    assert not training.token_budget
    connected(space, env_url, training, f"local:{tmp_path}/bucket")
    assert (training.token_budget, training.vllm_server_base_url) == (LONGEST_ROW, space.url)
    training.token_budget = 100
    connected(space, env_url, training, f"local:{tmp_path}/bucket")
    assert training.token_budget == 100


def test_a_bucket_that_is_missing_on_the_hub_is_made_private_and_said_so(
    hub: StandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        open_for_writing(BUCKET)
    assert hub.described()["buckets"] == {BUCKET: True}
    assert capfd.readouterr().out == f"bucket {BUCKET} was missing and has been made, private\n"


def test_a_public_bucket_is_not_trained_into(hub: StandIn) -> None:
    hub.change(BUCKET, is_bucket=True, private=False)
    with pytest.raises(BucketError, match=f"bucket {BUCKET} is public"):
        open_for_writing(BUCKET)


def test_a_token_that_may_only_read_is_refused_before_anything_is_waited_for(
    hub: StandIn, space: FakeSpace, env_url: str, training: TrainingConfig
) -> None:
    hub.change(BUCKET, is_bucket=True, private=True)
    hub.inject("status", "write-token", status=403, times=0)
    with pytest.raises(SyncError, match="cannot write .preflight-.*: HTTP 403: the token may not do this"):
        connected(space, env_url, training, BUCKET)
    assert space.headers == []


@pytest.mark.parametrize(
    ("given", "staleness", "expected"), [(-1, 4, 4 * 8 * 3), (-1, 0, 8 * 3), (0, 4, 0), (5, 4, 5)]
)
def test_rollouts_in_flight_are_counted_as_trl_does(tmp_path: Path, given: int, staleness: int, expected: int) -> None:
    training = TrainingConfig(
        output_dir=str(tmp_path),
        max_inflight_tasks=given,
        max_staleness=staleness,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=3,
    )
    assert rollouts_in_flight(training) == expected
