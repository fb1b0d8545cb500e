"""One line per logged step: TRL's numbers under our names, beside those of the step's sync."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from shared.bucket import open_bucket
from shared.types import Json
from tests.trainer_box.fake_space import fake_space
from trainer_box.publisher import Publisher
from trainer_box.replica import Replica
from trainer_box.step_log import FILE, StepLog
from trainer_box.weight_sync import WeightSync


@pytest.fixture
def weight_sync(tmp_path: Path) -> Iterator[WeightSync]:
    bucket = open_bucket(f"local:{tmp_path / 'bucket'}")
    with fake_space("tiny") as space, Publisher(bucket, "run") as publisher:
        yield WeightSync(bucket, publisher, Replica(space.url), 5, lambda line: None)


def log(callback: StepLog, folder: Path, step: int, logs: Json | None) -> None:
    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    callback.on_log(arguments, TrainerState(global_step=step), TrainerControl(), logs=logs, model=None)


def records(folder: Path) -> list[Json]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_a_step_is_written_with_its_numbers_and_its_sync(tmp_path: Path, weight_sync: WeightSync) -> None:
    callback = StepLog(tmp_path, weight_sync)
    for version, reward in ((0, 0.5), (1, 0.75)):
        weight_sync(iter([("a", torch.full((8,), float(version)))]), {}, [])
        log(callback, tmp_path, version + 1, {"reward": reward, "environment/solved": 0.25, "ratio": 1.01})
    first, second = records(tmp_path)
    assert (first["step"], first["reward"], first["version"], first["kind"]) == (1, 0.5, 0, "anchor")
    assert (second["step"], second["reward"], second["version"]) == (2, 0.75, 1)
    assert (second["solve_rate"], second["importance_ratio"]) == (0.25, 1.01)
    assert (second["changed"], second["total"], second["pause_ms"]) == (8, 8, 50)
    assert second["staleness"] is None, "what TRL did not log is unknown, not zero"


def test_numbers_that_are_not_finite_are_unknown(tmp_path: Path, weight_sync: WeightSync) -> None:
    log(StepLog(tmp_path, weight_sync), tmp_path, 1, {"reward": None, "ratio": math.nan, "entropy": math.inf})
    (record,) = records(tmp_path)
    assert (record["reward"], record["importance_ratio"], record["entropy"]) == (None, None, None)


def test_what_is_no_step_is_not_written(tmp_path: Path, weight_sync: WeightSync) -> None:
    callback = StepLog(tmp_path, weight_sync)
    log(callback, tmp_path, 3, {"train_runtime": 1.0})
    log(callback, tmp_path, 3, None)
    assert not (tmp_path / FILE).exists()
