"""One record per training step, written where other programs can follow it: TRL's numbers beside the step's sync."""

import json
import math
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from shared.types import Json
from trainer_box.weight_sync import WeightSync

FILE = "steps.jsonl"
_NAMES = {
    "reward": "reward",
    "reward_std": "reward_std",
    "environment/solved": "solve_rate",
    "sample/staleness_mean": "staleness",
    "ratio": "importance_ratio",
    "entropy": "entropy",
    "perf/step_s": "step_s",
    "perf/rollout_wait_s": "rollout_wait_s",
}


class StepLog(TrainerCallback):
    """Appends to `steps.jsonl` in the run's folder whenever TRL logs a step."""

    def __init__(self, folder: Path, weight_sync: WeightSync) -> None:
        self._path = folder / FILE
        self._weight_sync = weight_sync

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Json | None = None,
        **_: Any,
    ) -> None:
        if not logs or "reward" not in logs:
            return
        numbers = {name: _finite(logs.get(key)) for key, name in _NAMES.items()}
        sync = self._weight_sync.last.numbers() if self._weight_sync.last else {}
        with self._path.open("a") as file:
            file.write(json.dumps({"step": state.global_step, **numbers, **sync}) + "\n")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
