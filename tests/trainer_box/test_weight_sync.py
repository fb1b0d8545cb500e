"""One sync end to end, with a real publisher and a folder bucket: the line, the numbers, the files, the failures."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.bucket import Bucket, open_bucket
from shared.errors import SyncError
from shared.reader import RunReader
from shared.types import DataFile, Manifest, now
from tests.trainer_box.fake_space import Answer, FakeSpace, fake_space
from trainer_box.publisher import Publisher
from trainer_box.replica import Acknowledgement, Replica
from trainer_box.weight_sync import Sync, WeightSync

ROLLOUT = {"version": 0, "messages": [{"role": "user", "content": "hi"}], "numbers": {"reward": 0.5}}


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    monkeypatch.setattr("trainer_box.replica._POLL_S", 0.01)
    with fake_space("tiny") as server:
        yield server


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(f"local:{tmp_path / 'bucket'}")


@pytest.fixture
def publisher(bucket: Bucket) -> Iterator[Publisher]:
    with Publisher(bucket, "run", serving_dtype=torch.bfloat16) as opened:
        yield opened


def weights(value: float) -> Iterator[tuple[str, torch.Tensor]]:
    tensor = torch.ones(100)
    tensor[0] = value
    yield "a.weight", tensor


def test_the_line_of_a_sync_has_the_agreed_shape() -> None:
    data = DataFile("run/deltas/step_000042.safetensors", 6_104_000, "0" * 32)
    manifest = Manifest(
        "run",
        42,
        "delta",
        (data,),
        "0" * 16,
        62,
        10_000,
        1,
        now(),
        base_version=41,
        base_fingerprint="1" * 16,
        seconds={"diff": 0.2, "encode": 0.1, "upload": 3.5},
    )
    sync = Sync(manifest, Acknowledgement(42, stage_ms=1200, pause_ms=50, apply_ms=20), 5.05)
    assert sync.line() == (
        "sync v42 delta 6.10 MB sparsity 0.9938 | "
        "diff 0.20s encode 0.10s upload 3.50s stage 1.20s pause 0.05s verified"
    )


def test_a_sync_publishes_announces_and_tells_its_numbers(
    bucket: Bucket, publisher: Publisher, space: FakeSpace
) -> None:
    lines: list[str] = []
    sync = WeightSync(bucket, publisher, Replica(space.url), 5, lines.append)
    assert sync.last is None
    assert sync(weights(1.0), {}, []) == 0
    assert sync(weights(2.0), {"reward": 0.5}, [ROLLOUT, ROLLOUT]) == 1
    assert [update["version"] for update in space.updates] == [0, 1]
    assert all(update["repo_id"] == bucket.name and update["run_id"] == "run" for update in space.updates)
    manifest = RunReader(bucket, "run").newest()
    assert manifest.trainer == {"reward": 0.5}
    assert [line.split(" | ")[0].split()[:2] for line in lines] == [["sync", "v0"], ["sync", "v1"]]
    assert sync.last is not None
    numbers = sync.last.numbers()
    assert (numbers["version"], numbers["kind"], numbers["changed"], numbers["total"]) == (1, manifest.kind, 1, 100)
    assert numbers["sparsity"] == pytest.approx(0.99)
    assert numbers["payload_bytes"] == manifest.nbytes
    assert numbers["fingerprint"] == manifest.fingerprint
    assert (numbers["stage_ms"], numbers["pause_ms"], numbers["apply_ms"]) == (1200, 50, 20)
    assert numbers["sync_s"] >= sum(manifest.seconds.values())


def test_a_few_rollouts_can_be_read_beside_each_version(
    bucket: Bucket, publisher: Publisher, space: FakeSpace
) -> None:
    sync = WeightSync(bucket, publisher, Replica(space.url), 5, lambda line: None)
    sync(weights(1.0), {}, [])
    sync(weights(2.0), {}, [ROLLOUT, ROLLOUT])
    assert bucket.files("run/rollouts") == ["run/rollouts/000001.jsonl"]
    lines = bucket.read("run/rollouts/000001.jsonl").decode().splitlines()
    assert [json.loads(line) for line in lines] == [ROLLOUT, ROLLOUT]


def test_a_checkpoint_carries_run_version_and_fingerprint(
    bucket: Bucket, publisher: Publisher, space: FakeSpace
) -> None:
    sync = WeightSync(bucket, publisher, Replica(space.url), 5, lambda line: None)
    sync(weights(1.0), {}, [])
    sync(weights(2.0), {}, [])
    newest = RunReader(bucket, "run").newest()
    assert sync.checkpoint_state() == {"run_id": "run", "version": 1, "fingerprint": newest.fingerprint}


def test_a_refused_version_is_no_sync_and_the_next_one_has_another_number(
    bucket: Bucket, publisher: Publisher, space: FakeSpace
) -> None:
    lines: list[str] = []
    sync = WeightSync(bucket, publisher, Replica(space.url), 5, lines.append)
    space.script = [Answer(409, {"error": "no path", "served_version": 0, "need": "anchor"})]
    with pytest.raises(SyncError, match="refused version 0 .*HTTP 409.*anchor"):
        sync(weights(1.0), {}, [])
    assert (sync.last, lines) == (None, [])
    assert sync(weights(2.0), {}, []) == 1
