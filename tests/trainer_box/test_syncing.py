"""Sync points with a real publisher, and a Space that is asked over HTTP: what the bucket has and what is served."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shared.errors import SyncError
from shared.follower import Follower
from shared.reader import RunReader
from shared.types import Base, Manifest
from tests.shared.fake_bucket import MemoryBucket
from tests.trainer_box.fake_space import CUT_OFF, Answer, FakeSpace, fake_space
from trainer_box.delivery import Delivery
from trainer_box.publisher import Publisher
from trainer_box.replica import Replica
from trainer_box.weight_sync import Patience, StoppedError, WeightSync

DEADLINE_S = 30
ROLLOUT = {"version": 0, "messages": [{"role": "user", "content": "hi"}], "numbers": {"reward": 0.5}}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_box.delivery._FIRST_DELAY_S", 0.001)


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with fake_space("tiny") as server:
        yield server


class Run:
    """A run in a bucket in memory; `weights` are changed by each step."""

    def __init__(self, space: FakeSpace, bucket: MemoryBucket, **publisher: Any) -> None:
        self.bucket = bucket
        space.follow(bucket)
        self.lines: list[str] = []
        self.values = torch.ones(100)
        self.publisher = Publisher(bucket, "run", serving_dtype=torch.bfloat16, **publisher)
        self.delivery = Delivery(bucket, self.publisher, Replica(space.url), (), self.lines.append)
        self.sync = WeightSync(self.publisher, self.delivery, Patience(100, DEADLINE_S), None, self.lines.append)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "a.weight", self.values

    def step(self) -> int:
        if self.sync.point >= 0:
            self.values[self.sync.point] += 1
        return self.sync(self.weights, {"reward": 0.5}, [ROLLOUT])

    def settle(self) -> None:
        self.delivery.wait(lambda: False, DEADLINE_S)
        assert not self.delivery.is_busy

    def manifests(self) -> list[Manifest]:
        return list(RunReader(self.bucket, "run").manifests())

    def close(self) -> None:
        with self.delivery:
            self.sync.flush(self.weights)
        self.publisher.close()

    def in_bucket(self) -> torch.Tensor:
        found: dict[str, torch.Tensor] = {}
        Follower(self.bucket, "run").catch_up(found)
        return found["a.weight"]


def test_a_run_is_published_announced_and_told(space: FakeSpace) -> None:
    run = Run(space, MemoryBucket())
    for version in range(3):
        assert run.step() == version
        run.settle()
    run.close()
    assert [update["version"] for update in space.updates] == [0, 1, 2]
    assert all(update["repo_id"] == run.bucket.name and update["run_id"] == "run" for update in space.updates)
    newest = run.manifests()[-1]
    assert (newest.trainer["reward"], newest.trainer["sync/version"]) == (0.5, 1)  # of the sync before
    assert run.delivery.last is not None
    numbers = run.delivery.last.numbers()
    assert (numbers["version"], numbers["kind"], numbers["changed"], numbers["total"]) == (2, newest.kind, 1, 100)
    assert numbers["sparsity"] == pytest.approx(0.99)
    assert numbers["payload_bytes"] == newest.nbytes
    assert numbers["fingerprint"] == newest.fingerprint
    assert (numbers["stage_ms"], numbers["pause_ms"], numbers["apply_ms"]) == (1200, 50, 20)
    assert numbers["sync_s"] >= sum(newest.seconds.values())
    assert run.bucket.files("run/rollouts") == [f"run/rollouts/00000{version}.jsonl" for version in range(3)]
    assert torch.equal(run.in_bucket(), run.values.bfloat16())


def test_a_space_and_a_bucket_that_are_away_for_a_while_cost_no_version(space: FakeSpace) -> None:
    run = Run(space, MemoryBucket())
    run.step()
    space.fixed["/weights/update"] = Answer(503, {"error": "restarting"})
    for _ in range(4):
        run.step()
    assert run.delivery.acknowledged == 0
    space.fixed.clear()
    run.settle()
    run.bucket.fail_in, run.bucket.late = 3, True  # the manifest is stored, but the answer is lost
    run.step()
    run.settle()
    run.step()
    run.close()
    assert run.delivery.acknowledged == run.sync.point == space.updates[-1]["version"]
    assert torch.equal(run.in_bucket(), run.values.bfloat16())
    assert space.status["version"] == run.manifests()[-1].version


def test_an_answer_that_is_lost_is_looked_up(space: FakeSpace) -> None:
    run = Run(space, MemoryBucket())
    space.script = [Answer(CUT_OFF)]
    space.status.update(version=0, run_id="run", state="serving", fingerprint=run.publisher.count(run.weights()))
    assert run.step() == 0
    assert len(space.updates) == 1
    run.close()


def test_a_space_that_serves_other_weights_under_the_version_stops_training(space: FakeSpace) -> None:
    run = Run(space, MemoryBucket())
    run.step()
    space.fingerprint = lambda run_id, version: "f" * 16
    run.step()
    run.settle()
    with pytest.raises(StoppedError, match=f"serves version 1 of run 'run' with fingerprint {'f' * 16}, published"):
        run.step()
    assert run.delivery.acknowledged == 0
    with run.delivery:
        pass


def test_a_space_with_the_same_base_model_needs_no_bytes(space: FakeSpace) -> None:
    bucket = MemoryBucket()
    with Publisher(bucket, "counting", serving_dtype=torch.bfloat16) as publisher:
        base = Base("user/model", "", publisher.count([("a.weight", torch.ones(100))]))
    run = Run(space, bucket, base=base)
    assert run.step() == 0
    run.close()
    assert (run.manifests()[0].nbytes, space.updates[0]["filename"]) == (0, "")


def test_a_space_with_another_base_model_gets_an_anchor(space: FakeSpace) -> None:
    bucket = MemoryBucket()
    with Publisher(bucket, "counting", serving_dtype=torch.bfloat16) as publisher:
        base = Base("user/model", "", publisher.count([("a.weight", torch.ones(100))]))
    run = Run(space, bucket, base=base)
    space.script = [Answer(409, {"error": "another base", "served_version": 0, "need": "anchor"})]
    assert run.step() == 1
    assert run.step() == 2
    run.close()
    assert [(manifest.version, manifest.kind) for manifest in run.manifests()][:2] == [(0, "anchor"), (1, "anchor")]
    assert run.manifests()[1].nbytes > 0


def test_training_that_diverged_is_no_reason_for_a_checkpoint(space: FakeSpace) -> None:
    run = Run(space, MemoryBucket())
    run.step()
    run.values[3] = torch.nan
    with pytest.raises(SyncError, match="training has diverged") as caught:
        run.step()
    assert not isinstance(caught.value, StoppedError)
    with run.delivery:
        pass
