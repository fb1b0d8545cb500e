"""The trainer script: GRPO on one machine against a remote vLLM Space and environment, weights through a bucket."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import HfArgumentParser
from transformers.utils.hub import cached_file, extract_commit_hash

from shared import fingerprint
from shared.bucket import Bucket
from shared.errors import ChainError, SyncError
from shared.output import complain, say
from shared.reader import RunReader
from shared.types import Base, checked_run_id
from trainer_box import checkpoint, memory, preflight, task
from trainer_box.arguments import ScriptArguments
from trainer_box.checkpoint import Checkpoint
from trainer_box.connections import Connections, connect
from trainer_box.delivery import Delivery, Sync
from trainer_box.deploy.pausing import pause
from trainer_box.detect import copy_all
from trainer_box.ending import INTERRUPTED as WAS_INTERRUPTED
from trainer_box.ending import Ending
from trainer_box.entry import INTERRUPTED
from trainer_box.interrupt import Interrupt
from trainer_box.publisher import Publisher
from trainer_box.sparsity import SparsityReport
from trainer_box.step_log import StepLog, SyncLog
from trainer_box.trl_adapter import DeltaSyncTrainer, TrainingConfig
from trainer_box.weight_sync import Patience, StoppedError, WeightSync

SERVED_DTYPE = torch.bfloat16


def main() -> int:
    try:
        preflight.check_one_process()  # first of all: the arguments already look for other processes
        preflight.check_one_gpu()
        return train(*_arguments())
    except SyncError as error:
        complain(f"error: {error}")
        return 1
    except OSError as error:
        complain(f"error: {error}; the output folder or the disk of this machine does not take it")
        return 1


def train(script: ScriptArguments, training: TrainingConfig) -> int:
    """Returns the exit code. Raises SyncError for whatever a user can mend."""
    what = _task(script, training.seed)
    if training.dtype == "bfloat16":
        say("warning: with bfloat16 parameters AdamW rounds small updates away; train with --dtype float32")
    connections = connect(script, training)
    try:
        return _train(script, training, what, connections)
    finally:
        if script.pause_spaces_at_end:
            pause(connections.spaces, os.environ.get("HF_TOKEN"), say)


def _train(script: ScriptArguments, training: TrainingConfig, what: dict[str, Any], connections: Connections) -> int:
    bucket = connections.bucket
    memory.check(script.model, training)
    folder = _prepare_folder(script, training)
    start = checkpoint.newest(folder, script.run_id, say) if script.resume else None
    if not script.resume:
        _check_unused(bucket, script.run_id)
    trainer = _build(script, training, what)  # before the run: what cannot be trained leaves nothing in the bucket
    with (
        _publisher(bucket, script, trainer, start) as publisher,
        Interrupt() as interrupt,
        Ending(bucket, script.run_id, say) as ending,
        Delivery(bucket, publisher, connections.replica, (*_tellers(trainer), SyncLog(folder)), say) as delivery,
    ):
        ending.last = lambda: delivery.last
        patience = Patience(training.max_staleness, training.weight_sync_timeout, lambda: interrupt.requested)
        trainer.policy_sync = weight_sync = WeightSync(publisher, delivery, patience, start, say)
        for callback in (StepLog(folder, weight_sync), SparsityReport(folder, SERVED_DTYPE), interrupt):
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=str(start.folder) if start else None)
        failure = trainer.failure or _flush(weight_sync, trainer)
        ending.reason = WAS_INTERRUPTED if interrupt.requested else str(failure or "")
    if interrupt.requested or failure:
        _say_how_to_go_on(folder, script.run_id)
    if interrupt.requested:
        if failure:
            say(f"the Space was left behind: {failure}")
        return INTERRUPTED
    if failure:
        raise failure
    return 0


def _flush(weight_sync: WeightSync, trainer: DeltaSyncTrainer) -> SyncError | None:
    try:
        weight_sync.flush(trainer.named_tensors)
    except StoppedError as error:
        return error
    return None


def _arguments() -> tuple[ScriptArguments, TrainingConfig]:
    try:
        script, training = HfArgumentParser((ScriptArguments, TrainingConfig)).parse_args_into_dataclasses()
    except ValueError as error:
        raise SyncError(f"the arguments cannot be used: {error}; see --help") from error
    return script, training


def _publisher(
    bucket: Bucket, script: ScriptArguments, trainer: DeltaSyncTrainer, start: Checkpoint | None
) -> Publisher:
    """The untouched model is the run's base: a Space that holds the same one needs no bytes for version 0."""
    untouched = fingerprint.to_text(fingerprint.fingerprint(copy_all(trainer.named_tensors(), SERVED_DTYPE)))
    base = replace(_origin(script.model, trainer.args.model_init_kwargs or {}), fingerprint=untouched)
    spent = start.version if start else -1
    return Publisher(bucket, script.run_id, model=script.model, base=base, serving_dtype=SERVED_DTYPE, after=spent)


def _origin(model: str, loading: dict[str, Any]) -> Base:
    """Where a model was loaded from: a folder, or a commit on the Hub."""
    if Path(model).exists():
        return Base(str(Path(model).resolve()))
    cached = cached_file(model, "config.json", revision=loading.get("revision"), local_files_only=True)
    return Base(model, extract_commit_hash(cached, None) or "")


def _tellers(trainer: DeltaSyncTrainer) -> tuple[Callable[[Sync], None], ...]:
    return (
        lambda sync: trainer.acknowledge(sync.manifest.version),
        lambda sync: trainer.report_sync(sync.metrics()),
    )


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


def _say_how_to_go_on(folder: Path, run_id: str) -> None:
    try:
        saved = checkpoint.newest(folder, run_id, say)
    except SyncError:  # nothing was trained, or checkpoints are switched off
        return
    say(f"checkpoint saved in {saved.folder}; to go on, add: --resume --run-id {run_id}")


def _build(script: ScriptArguments, training: TrainingConfig, what: dict[str, Any]) -> DeltaSyncTrainer:
    try:
        return DeltaSyncTrainer(args=training, **what)
    except memory.BROKEN_MODEL as error:
        told = (str(error).splitlines() or [""])[0]
        raise SyncError(f"model {script.model!r} cannot be trained: {type(error).__name__}: {told}") from error
