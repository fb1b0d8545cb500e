"""The trainer script: GRPO on one machine against a remote vLLM Space and environment, weights through a bucket."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import HfArgumentParser
from transformers.trainer_utils import get_last_checkpoint

from shared.bucket import Bucket, open_bucket
from shared.errors import ChainError, SyncError
from shared.reader import RunReader
from shared.types import Base, checked_run_id
from trainer_box import preflight, task
from trainer_box.arguments import ScriptArguments
from trainer_box.entry import INTERRUPTED
from trainer_box.interrupt import Interrupt
from trainer_box.publisher import Publisher
from trainer_box.replica import Replica
from trainer_box.sparsity import SparsityReport
from trainer_box.step_log import StepLog
from trainer_box.trl_adapter import CHECKPOINT_FILE, DeltaSyncTrainer, TrainingConfig
from trainer_box.weight_sync import WeightSync

SERVED_DTYPE = torch.bfloat16


def main() -> int:
    try:
        preflight.check_one_process()  # first of all: the arguments already look for other processes
        preflight.check_one_gpu()
        return train(*_arguments())
    except SyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}; the output folder or the disk of this machine does not take it", file=sys.stderr)
        return 1


def train(script: ScriptArguments, training: TrainingConfig) -> int:
    """Returns the exit code. Raises SyncError for whatever a user can mend."""
    what = _task(script, training.seed)
    if training.dtype == "bfloat16":
        print(
            "warning: with bfloat16 parameters AdamW rounds small updates away; train with --dtype float32", flush=True
        )
    bucket, replica = _connect(script, training)
    folder = _prepare_folder(script, training)
    checkpoint, spent = _checkpoint(folder, script.run_id) if script.resume else (None, -1)
    if not script.resume:
        _check_unused(bucket, script.run_id)
    trainer = _build(script, training, what)  # before the run: what cannot be trained leaves nothing in the bucket
    with _publisher(bucket, script, spent) as publisher, Interrupt() as interrupt:
        weight_sync = WeightSync(bucket, publisher, replica, training.weight_sync_timeout, _print)
        trainer.policy_sync = weight_sync
        for callback in (StepLog(folder, weight_sync), SparsityReport(folder, SERVED_DTYPE), interrupt):
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=checkpoint)
    if interrupt.requested:
        place = get_last_checkpoint(str(folder))
        print(f"checkpoint saved in {place}; to go on, add: --resume --run-id {script.run_id}", flush=True)
        return INTERRUPTED
    return 0


def _arguments() -> tuple[ScriptArguments, TrainingConfig]:
    try:
        script, training = HfArgumentParser((ScriptArguments, TrainingConfig)).parse_args_into_dataclasses()
    except ValueError as error:
        raise SyncError(f"the arguments cannot be used: {error}; see --help") from error
    return script, training


def _publisher(bucket: Bucket, script: ScriptArguments, spent: int) -> Publisher:
    base = Base(repo=script.model)
    return Publisher(bucket, script.run_id, model=script.model, base=base, serving_dtype=SERVED_DTYPE, after=spent)


def _task(script: ScriptArguments, seed: int) -> dict[str, Any]:
    """What is trained and on what, as the trainer takes it: TRL keeps the rows' order, so the seed chooses it here."""
    for name in ("model", "bucket"):
        if not vars(script)[name]:
            raise SyncError(f"no {name} is given; set --{name} or {name.upper()} in the environment")
    checked_run_id(script.run_id)
    environment = task.environment_factory(script.environment, script.env_url) if script.environment else None
    return {
        "model": script.model,
        "environment_factory": environment,
        "reward_funcs": [task.reward_function(script.reward)] if script.reward else None,
        "train_dataset": task.dataset(script.dataset).shuffle(seed=seed),
    }


def _connect(script: ScriptArguments, training: TrainingConfig) -> tuple[Bucket, Replica]:
    bucket = open_bucket(script.bucket, token=os.environ.get("HF_TOKEN"))
    if script.env_url:
        preflight.check_environment(script.env_url)
    replica = Replica(script.vllm_url)
    _print(f"waiting for vLLM at {replica.url}, {training.vllm_server_timeout:.0f} s at most")
    preflight.check_replica(replica, script.model, training.vllm_server_timeout)
    training.vllm_server_base_url = replica.url
    return bucket, replica


def _check_unused(bucket: Bucket, run_id: str) -> None:
    try:
        RunReader(bucket, run_id).run()
    except ChainError:
        return
    raise SyncError(
        f"run {run_id!r} is in bucket {bucket.name} already; go on with it by --resume, or choose another --run-id"
    )


def _prepare_folder(script: ScriptArguments, training: TrainingConfig) -> Path:
    folder = Path(training.output_dir or Path("runs", script.run_id))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SyncError(
            f"output folder {folder} cannot be made: {error.strerror}; choose another --output-dir"
        ) from error
    training.output_dir = str(folder)
    return folder


def _checkpoint(folder: Path, run_id: str) -> tuple[str, int]:
    """The newest checkpoint in `folder`, which must be of this run, and the version it was saved at."""
    checkpoint: str | None = get_last_checkpoint(str(folder))
    if checkpoint is None:
        raise SyncError(f"there is no checkpoint in {folder} to resume from; check --run-id and --output-dir")
    try:
        saved = json.loads(Path(checkpoint, CHECKPOINT_FILE).read_text())
        owner, version = str(saved["run_id"]), int(saved["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SyncError(
            f"{checkpoint} has no readable {CHECKPOINT_FILE}, was it saved by this trainer? {error}"
        ) from error
    if owner != run_id:
        raise SyncError(f"{checkpoint} belongs to run {owner!r}, not to {run_id!r}; resume with --run-id {owner}")
    return checkpoint, version


def _build(script: ScriptArguments, training: TrainingConfig, what: dict[str, Any]) -> DeltaSyncTrainer:
    try:
        return DeltaSyncTrainer(args=training, **what)
    except (OSError, ValueError) as error:
        raise SyncError(f"model {script.model!r} cannot be trained: {str(error).splitlines()[0]}") from error


def _print(line: str) -> None:
    print(line, flush=True)
