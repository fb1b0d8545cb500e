"""TRL with our sync: what a sync point hands over, what a checkpoint holds, and how training ends when it must."""

import json
import math
import queue
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file

from shared import output
from shared.errors import SyncError
from shared.types import Json
from trainer_box import checkpoint
from trainer_box.tiny_policy import tiny_policy_path

# isort: off
# the adapter comes first, so that TRL is imported without vLLM
from trainer_box.trl_adapter import DeltaSyncTrainer, TrainingConfig
from trainer_box.weight_sync import StoppedError, Weights
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
# isort: on

MODEL = str(tiny_policy_path())


class Worker:
    def __init__(self, samples: Sequence[RolloutSample]) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[Json] = queue.Queue()
        self.versions: list[int] = []
        for sample in samples:
            self.rollout_buffer.put(sample)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def update_model_version(self, model_version: int) -> None:
        self.versions.append(model_version)

    def check_health(self, stale_after_s: float) -> None:
        raise SyncError("the rollouts stopped: no answer")


class Sync:
    """Keeps what it is handed; numbers go up in tens. `failing` is what the points from `failing_from` on raise."""

    def __init__(self, failing: SyncError | None = None, failing_from: int = 0) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []
        self.numbers: list[Json] = []
        self.rollouts: list[Sequence[Json]] = []
        self.failing = failing
        self.failing_from = failing_from

    def __call__(self, weights: Weights, numbers: Json, rollouts: Sequence[Json]) -> int:
        if self.failing is not None and len(self.weights) >= self.failing_from:
            raise self.failing
        self.weights.append({name: tensor.clone() for name, tensor in weights()})
        self.numbers.append(numbers)
        self.rollouts.append(rollouts)
        return 10 * (len(self.weights) - 1)

    def checkpoint_state(self, weights: Weights) -> Json:
        return {"run_id": "r", "version": 10 * (len(self.weights) - 1), "tensors": len(list(weights()))}


def sample(number: int, reward: float = 1.0, version: int = 0) -> RolloutSample:
    return RolloutSample(
        prompt=[{"role": "user", "content": f"question {number}"}],
        completion=[{"role": "assistant", "content": "answer"}],
        input_ids=np.array([5, 6, 7 + number, 8], dtype=np.int64),
        completion_mask=np.array([0, 0, 1, 1], dtype=np.int64),
        old_log_probs=np.array([0.0, 0.0, -5.0, -5.0], dtype=np.float32),
        advantage=1.0 if number % 2 else -1.0,
        model_version=version,
        group_id=number // 2,
        metrics={"reward": reward, "environment/solved": 0.5, "rewards/Guess": reward},
    )


def nothing(trainer: DeltaSyncTrainer) -> None: ...


def train(
    folder: Path,
    samples: Sequence[RolloutSample],
    change: Callable[[DeltaSyncTrainer], None] = nothing,
    sync: Sync | None = None,
    steps: int = 3,
    resume: str | None = None,
    **options: Any,
) -> Any:
    arguments = TrainingConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        token_budget=0,
        learning_rate=1e-2,
        max_staleness=100,
        **options,
    )
    trainer = DeltaSyncTrainer(
        model=MODEL,
        args=arguments,
        reward_funcs=[len],
        train_dataset=Dataset.from_list([{"prompt": "x"}]),
        rollout_worker=Worker(samples),
    )
    trainer.policy_sync = sync or Sync()
    change(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_a_run_hands_over_every_parameter_its_numbers_and_a_few_rollouts(tmp_path: Path) -> None:
    def freeze(trainer: DeltaSyncTrainer) -> None:
        trainer.model.model.layers[0].requires_grad_(False)

    rewards = [1.0, 3.0, 2.0, math.nan, math.nan, math.nan, 5.0, 5.0]  # the data loader is one batch ahead
    trainer = train(tmp_path, [sample(i, reward) for i, reward in enumerate(rewards)], freeze)
    sync, names = trainer.policy_sync, {name for name, _ in trainer.model.named_parameters()}
    assert [set(weights) for weights in sync.weights] == [names] * 4, "before the first step and after each"
    assert all(not tensor.requires_grad for tensor in sync.weights[0].values())
    changed = {name for name in names if not torch.equal(sync.weights[0][name], sync.weights[3][name])}
    assert changed
    assert not any(name.startswith("model.layers.0.") for name in changed), "that layer was frozen"

    assert sync.numbers[0] == {}
    assert [str(numbers["reward"]) for numbers in sync.numbers[1:]] == ["2.0", "nan", "5.0"], "all of a step were lost"
    assert sync.numbers[1]["environment/solved"] == 0.5
    assert sync.numbers[1]["rewards/Guess"] == 2.0
    assert sync.numbers[2]["sample/staleness_mean"] == 10.0
    assert [sync.numbers[2][name] for name in ("step", "max_steps", "sample/staleness_limit")] == [2, 3, 100]

    assert sync.rollouts[0] == []
    questions = [rollout["messages"][0]["content"] for rollout in sync.rollouts[3]]
    assert questions == [f"question {i}" for i in (4, 5, 6, 7)]
    assert sync.rollouts[1][0]["numbers"]["reward"] == 1.0
    assert sync.rollouts[2][-1]["numbers"]["reward"] == "nan"
    assert "NaN" not in json.dumps(sync.rollouts)

    assert trainer.model_version == 30, "the sync point"
    assert trainer.rollout_worker.versions == [], "what rollouts are told is what was acknowledged"
    trainer.acknowledge(20)
    assert trainer.rollout_worker.versions == [20]
    callbacks = {type(callback).__name__ for callback in trainer.callback_handler.callbacks}
    assert not callbacks & {"PrinterCallback", "ProgressCallback"}, "progress is told by our own lines"
    saved = json.loads((tmp_path / "checkpoint-3" / checkpoint.FILE).read_text())
    assert saved == {"run_id": "r", "version": 30, "tensors": len(names)}
    assert trainer.failure is None


def test_a_sync_is_reported_beside_the_metrics_of_the_step_in_which_it_was_acknowledged(tmp_path: Path) -> None:
    def report(trainer: DeltaSyncTrainer) -> None:
        for pause_ms in (40.0, 60.0):
            trainer.report_sync({"sync/pause_ms": pause_ms, "sync/payload_bytes": 1000})

    trainer = train(tmp_path, [sample(i) for i in range(8)], report, logging_steps=1)
    first, second = [record for record in trainer.state.log_history if "ratio" in record][:2]
    assert (first["sync/pause_ms"], first["sync/payload_bytes"]) == (50.0, 1000)
    assert "sync/pause_ms" not in second


def test_the_names_are_those_of_the_checkpoint_whatever_wraps_the_modules() -> None:
    wrapped = ("_orig_mod.model.a", "model._checkpoint_wrapped_module.b", "_orig_mod.m._orig_mod.c", "plain")
    model = SimpleNamespace(named_parameters=lambda: [(name, torch.zeros(1)) for name in wrapped])
    unready: Any = DeltaSyncTrainer.__new__(DeltaSyncTrainer)
    unready.accelerator, unready.model = SimpleNamespace(unwrap_model=lambda wrapper: wrapper), model
    assert [name for name, _ in unready.named_tensors()] == ["model.a", "model.b", "m.c", "plain"]


def whole(folder: Path) -> list[str]:
    """The checkpoints that can be gone on from."""
    return sorted(path.parent.name for path in folder.glob(f"checkpoint-*/{checkpoint.FILE}"))


@pytest.mark.parametrize("error", [StoppedError("not served"), SyncError("HTTP 409")])
def test_a_first_version_that_cannot_be_served_ends_training_with_nothing_to_save(
    tmp_path: Path, error: SyncError
) -> None:
    with pytest.raises(SyncError, match=str(error)):
        train(tmp_path, [], sync=Sync(error))
    assert whole(tmp_path) == []


def test_who_cannot_be_kept_up_with_ends_training_with_a_checkpoint(tmp_path: Path) -> None:
    reason = StoppedError("sync v20: vLLM serves version 0 after 120 s")
    trainer = train(tmp_path, [sample(i) for i in range(8)], sync=Sync(reason, failing_from=2))
    assert trainer.failure is reason
    assert trainer.state.global_step == 2
    assert whole(tmp_path) == ["checkpoint-2"]


def test_weights_that_are_not_what_they_should_be_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(SyncError, match="training has diverged"):
        train(tmp_path, [sample(i) for i in range(8)], sync=Sync(SyncError("training has diverged"), failing_from=2))
    assert whole(tmp_path) == []


def quick_to_ask(trainer: DeltaSyncTrainer) -> None:
    """Whether the rollouts are well is asked as soon as there is no sample."""
    make = trainer.get_train_dataloader

    def made() -> Any:
        loader = make()
        trainer._rollout_dataset.poll_interval_s = 0.01
        return loader

    trainer.get_train_dataloader = made


def test_rollouts_that_end_end_training_with_a_checkpoint(tmp_path: Path) -> None:
    trainer = train(tmp_path, [sample(i) for i in range(7)], quick_to_ask, steps=9)
    assert str(trainer.failure) == "the rollouts stopped: no answer"
    assert 0 < trainer.state.global_step < 9
    assert whole(tmp_path) == [f"checkpoint-{trainer.state.global_step}"]


def test_rollouts_that_end_before_the_first_step_leave_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(SyncError, match="the rollouts stopped: no answer"):
        train(tmp_path, [sample(0)], quick_to_ask)
    assert whole(tmp_path) == []


def test_older_checkpoints_are_deleted_once_the_new_one_is_whole(tmp_path: Path) -> None:
    class Watching(Sync):
        def checkpoint_state(self, weights: Weights) -> Json:
            before.append(whole(tmp_path))
            return super().checkpoint_state(weights)

    before: list[list[str]] = []
    train(tmp_path, [sample(i) for i in range(8)], sync=Watching(), save_steps=1, save_total_limit=1)
    assert before == [[], ["checkpoint-1"], ["checkpoint-2"]]
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]


@pytest.mark.parametrize("error", [RuntimeError("PytorchStreamWriter failed writing file"), OSError("no space left")])
def test_a_checkpoint_that_cannot_be_saved_is_not_whole(tmp_path: Path, error: Exception) -> None:
    def full(trainer: DeltaSyncTrainer) -> None:
        def save_optimizer(folder: str) -> None:
            raise error

        trainer._save_optimizer_and_scheduler = save_optimizer

    with pytest.raises((SyncError, OSError), match=str(error)):
        train(tmp_path, [sample(i) for i in range(8)], full)
    assert (tmp_path / "checkpoint-3" / "model.safetensors").is_file()
    assert whole(tmp_path) == []


def test_a_checkpoint_is_saved_though_nobody_takes_its_progress_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers shows one for the model's files."""
    with open("/dev/full", "w") as full, monkeypatch.context() as patched:
        for stream in ("sys.stdout", "sys.stderr"):
            patched.setattr(stream, full)
        output.let_libraries_print()
        train(tmp_path, [sample(i) for i in range(8)])
    assert whole(tmp_path) == ["checkpoint-3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole checkpoint of one step."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, [sample(i) for i in range(4)], steps=1)
    return folder / "checkpoint-1"


def test_a_checkpoint_is_gone_on_from(tmp_path: Path, trained: Path) -> None:
    trainer = train(tmp_path, [sample(i) for i in range(4)], steps=2, resume=str(trained))
    assert trainer.state.global_step == 2
    first = trainer.policy_sync.weights[0]
    stored = load_file(trained / "model.safetensors")
    assert all(torch.equal(first[name], stored[name]) for name in first)


@pytest.mark.parametrize(
    ("name", "kept", "what"),
    [
        ("model.safetensors", 900, "the model"),
        ("optimizer.pt", 0, "the optimizer's state"),
        ("scheduler.pt", 900, "the optimizer's state"),
        ("rng_state.pth", 900, "the random numbers' state"),
    ],
)
def test_a_file_that_was_cut_off_is_one_sentence(
    tmp_path: Path, trained: Path, name: str, what: str, kept: int
) -> None:
    place = tmp_path / "checkpoint-1"
    shutil.copytree(trained, place)
    (place / name).write_bytes((trained / name).read_bytes()[:kept])
    with pytest.raises(SyncError) as caught:
        train(tmp_path, [sample(i) for i in range(4)], steps=2, resume=str(place))
    sentence = str(caught.value)
    assert sentence.startswith(f"{what} of {place} cannot be loaded: ")
    assert "\n" not in sentence


def test_a_model_of_another_shape_is_one_sentence(tmp_path: Path, trained: Path) -> None:
    place = tmp_path / "checkpoint-1"
    shutil.copytree(trained, place)
    tensors = {name: tensor[:-1].contiguous() for name, tensor in load_file(place / "model.safetensors").items()}
    save_file(tensors, place / "model.safetensors")
    with pytest.raises(SyncError, match="the model of .* cannot be loaded: RuntimeError .*size mismatch"):
        train(tmp_path, [sample(i) for i in range(4)], steps=2, resume=str(place))
