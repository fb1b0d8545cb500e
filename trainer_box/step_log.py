"""Two files in the run's folder that other programs can follow: a record per training step, and one per sync.

A step is written when it ends, its sync when it is acknowledged, which may be later, or together with another step's.
"""

import errno
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from shared.output import say
from shared.types import Json
from trainer_box.delivery import Sync
from trainer_box.weight_sync import WeightSync

FILE = "steps.jsonl"
SYNCS = "syncs.jsonl"
_NAMES = {
    "reward": "reward",
    "reward_std": "reward_std",
    "environment/solved": "solve_rate",
    "environment/unscorable_total": "unscorable",
    "sample/staleness_mean": "staleness",
    "sample/dropped_stale_total": "dropped_stale",
    "ratio": "importance_ratio",
    "entropy": "entropy",
    "perf/step_s": "step_s",
    "perf/rollout_wait_s": "rollout_wait_s",
}


class StepLog(TrainerCallback):
    """Appends to `steps.jsonl` when TRL logs a step: `version` is its sync point, `acknowledged` what is served."""

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
        sync = {"version": self._weight_sync.point, "acknowledged": self._weight_sync.delivery.acknowledged}
        _append(self._path, {"step": state.global_step, **numbers, **sync})


class SyncLog:
    """Appends each sync to `syncs.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SYNCS

    def __call__(self, sync: Sync) -> None:
        _append(self._path, sync.numbers())


def joined(steps: Sequence[Json], syncs: Sequence[Json]) -> list[Json]:
    """Each step with the numbers of its sync; None where its sync point has none, as a later one covered it."""
    by_version: dict[int, Json] = {}
    for sync in syncs:
        by_version.setdefault(sync["version"], sync)  # a resumed run acknowledges its first version again
    unknown = dict.fromkeys(name for sync in syncs for name in sync)
    return [{**unknown, **by_version.get(step["version"], {}), **step} for step in steps]


def _append(path: Path, record: Json) -> None:
    """Whole or not at all. A record that the disk does not take is told and lost: training goes on without it."""
    line = (json.dumps(record) + "\n").encode()
    try:
        with path.open("ab", buffering=0) as file:
            end = file.tell()
            if file.write(line) < len(line):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        say(f"{path} lacks a record: {error.strerror}")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
