"""One line per logged step and one per sync, and how they are put together again."""

import json
import math
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from shared.types import Json
from tests.shared.fake_bucket import MemoryBucket
from tests.trainer_box.fake_versions import FakePublisher, FakeReplica
from trainer_box.delivery import Delivery
from trainer_box.step_log import FILE, SYNCS, StepLog, SyncLog, joined
from trainer_box.weight_sync import Patience, WeightSync

DEADLINE_S = 30


@pytest.fixture
def replica() -> FakeReplica:
    return FakeReplica()


@pytest.fixture
def weight_sync(tmp_path: Path, replica: FakeReplica) -> Iterator[WeightSync]:
    publisher = FakePublisher()
    with Delivery(MemoryBucket(), publisher, replica, [SyncLog(tmp_path)], lambda line: None) as delivery:
        yield WeightSync(publisher, delivery, Patience(5, DEADLINE_S), None, lambda line: None)


def point(weight_sync: WeightSync) -> int:
    return weight_sync(lambda: iter([("a", torch.tensor(1.0))]), {}, [])


def log(callback: StepLog, folder: Path, step: int, logs: Json | None) -> None:
    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    callback.on_log(arguments, TrainerState(global_step=step), TrainerControl(), logs=logs, model=None)


def records(folder: Path, name: str = FILE) -> list[Json]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_step_is_written_at_once_with_its_sync_point_and_what_is_served(
    tmp_path: Path, weight_sync: WeightSync, replica: FakeReplica
) -> None:
    callback = StepLog(tmp_path, weight_sync)
    point(weight_sync)
    replica.gate.clear()
    for step, reward in ((1, 0.5), (2, 0.75)):
        point(weight_sync)
        log(callback, tmp_path, step, {"reward": reward, "environment/solved": 0.25, "ratio": 1.01})
    first, second = records(tmp_path)
    assert (first["step"], first["reward"], first["version"], first["acknowledged"]) == (1, 0.5, 1, 0)
    assert (second["step"], second["reward"], second["version"], second["acknowledged"]) == (2, 0.75, 2, 0)
    assert (second["solve_rate"], second["importance_ratio"]) == (0.25, 1.01)
    assert second["staleness"] is None, "what TRL did not log is unknown, not zero"
    replica.gate.set()


def test_a_sync_is_written_when_it_is_acknowledged(
    tmp_path: Path, weight_sync: WeightSync, replica: FakeReplica
) -> None:
    point(weight_sync)
    assert [record["version"] for record in records(tmp_path, SYNCS)] == [0]
    replica.gate.clear()
    point(weight_sync)
    assert len(records(tmp_path, SYNCS)) == 1
    replica.gate.set()
    weight_sync.delivery.wait(lambda: False, DEADLINE_S)
    assert weight_sync.delivery.last is not None
    assert records(tmp_path, SYNCS)[1] == weight_sync.delivery.last.numbers()


def test_a_record_that_the_disk_does_not_take_is_told_and_training_goes_on(
    tmp_path: Path, weight_sync: WeightSync, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in (FILE, SYNCS):
        (tmp_path / name).symlink_to("/dev/full")
    point(weight_sync)
    log(StepLog(tmp_path, weight_sync), tmp_path, 1, {"reward": 0.5})
    assert (weight_sync.delivery.acknowledged, weight_sync.delivery.failure) == (0, None)
    assert capfd.readouterr().out.splitlines() == [
        f"{tmp_path}/{name} lacks a record: No space left on device" for name in (SYNCS, FILE)
    ]


def test_a_record_of_which_a_part_fits_leaves_no_torn_line(tmp_path: Path, weight_sync: WeightSync) -> None:
    callback = StepLog(tmp_path, weight_sync)
    log(callback, tmp_path, 1, {"reward": 0.5})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / FILE).stat().st_size + 10, limits[1]))
    try:
        log(callback, tmp_path, 2, {"reward": 0.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log(callback, tmp_path, 3, {"reward": 0.5})
    assert [record["step"] for record in records(tmp_path)] == [1, 3]


def test_steps_are_joined_with_their_syncs_by_version() -> None:
    steps = [{"step": step, "version": step, "acknowledged": 0} for step in (1, 2, 3)]
    syncs = [{"version": version, "kind": "delta", "pause_ms": version * 10.0} for version in (0, 1, 3)]
    first, second, third = joined(steps, syncs)
    assert first == {"step": 1, "version": 1, "acknowledged": 0, "kind": "delta", "pause_ms": 10.0}
    assert second == {"step": 2, "version": 2, "acknowledged": 0, "kind": None, "pause_ms": None}, "it was absorbed"
    assert third["pause_ms"] == 30.0
    assert joined(steps, []) == steps


def test_a_version_that_is_acknowledged_again_after_a_resume_keeps_its_numbers() -> None:
    syncs = [{"version": 1, "sync_s": 5.0}, {"version": 1, "sync_s": 0.1}]
    assert joined([{"version": 1}], syncs) == [{"version": 1, "sync_s": 5.0}]


def test_numbers_that_are_not_finite_are_unknown(tmp_path: Path, weight_sync: WeightSync) -> None:
    log(StepLog(tmp_path, weight_sync), tmp_path, 1, {"reward": None, "ratio": math.nan, "entropy": math.inf})
    (record,) = records(tmp_path)
    assert (record["reward"], record["importance_ratio"], record["entropy"]) == (None, None, None)


def test_what_is_no_step_is_not_written(tmp_path: Path, weight_sync: WeightSync) -> None:
    callback = StepLog(tmp_path, weight_sync)
    log(callback, tmp_path, 3, {"train_runtime": 1.0})
    log(callback, tmp_path, 3, None)
    assert not (tmp_path / FILE).exists()
