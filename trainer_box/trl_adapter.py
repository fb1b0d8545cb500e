"""The one module that touches TRL's internals (1.16): AsyncGRPOTrainer with our sync, on any device, without vLLM.

What it changes and why: attention without FlashAttention-3; the rollout child needs HTTP only, so TRL's checks for
an installed vLLM are answered; rollouts ask the Space in our own way; every parameter is synced, frozen ones too;
rewards may have parts; a checkpoint is whole or none, and whoever cannot go on saves one first. Knows nothing of
buckets and of how weights get to the Space.
"""

import logging
import math
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from transformers import PrinterCallback, ProgressCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl import import_utils

from shared.errors import SyncError
from shared.types import Json
from trainer_box import attention, checkpoint, rollout_child, rollout_requests
from trainer_box.reward import Reward
from trainer_box.weight_sync import StoppedError, Weights

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
_is_vllm_available = import_utils.is_vllm_available
import_utils.is_vllm_available = lambda *_, **__: False  # so that the import below does not import vLLM
from trl.experimental.async_grpo import (  # noqa: E402
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    async_rollout_worker,
    packing,
)

import_utils.is_vllm_available = _is_vllm_available
_peak_flops = async_grpo_trainer.get_peak_flops_per_device
_child_main = async_rollout_worker._child_main

_KEPT_ROLLOUTS = 4
_NUMBERS = ("reward", "reward_std", "ratio", "entropy", "kl", "perf/step_s", "perf/rollout_wait_s")
_NUMBERS_OF = ("rewards/", "environment/", "sample/staleness", "sample/dropped_stale")
_OF_EPISODES = ("reward", "environment/")  # `reward_std` and `rewards/` too
_SAMPLES, _STOPPED, _METRICS = 2, 4, 9  # places in the arguments of TRL's rollout child

NamedTensors = Iterator[tuple[str, torch.Tensor]]


@dataclass
class TrainingConfig(AsyncGRPOConfig):
    """TRL's arguments, with the defaults that this trainer needs."""

    output_dir: str | None = field(default="", metadata={"help": "Checkpoints and logs; by default runs/<run id>."})
    max_tool_calling_iterations: int | None = field(default=6, metadata={"help": "Tool turns of an episode."})
    vllm_server_timeout: float = field(
        default=900.0, metadata={"help": "Seconds until vLLM is ready; a Space that sleeps takes minutes to wake up."}
    )
    report_to: list[str] | str = field(default_factory=list, metadata={"help": "Where TRL reports to, e.g. trackio."})

    def __post_init__(self) -> None:
        if not torch.cuda.is_available():
            self.use_cpu, self.bf16, self.gradient_checkpointing = True, False, False
        super().__post_init__()


class PolicySync(Protocol):
    """What the trainer asks for at every sync point."""

    def __call__(self, weights: Weights, numbers: Json, rollouts: Sequence[Json]) -> int:
        """Have the weights served, now or behind the next steps; returns the number of the sync point."""

    def checkpoint_state(self, weights: Weights) -> Json:
        """What a checkpoint has to carry to go on in the same run."""


class DeltaSyncTrainer(AsyncGRPOTrainer):
    """AsyncGRPOTrainer whose sync points go through `policy_sync`, to be set before training.

    `failure` is why training ended early, after a checkpoint.
    """

    policy_sync: PolicySync

    def __init__(self, **trainer_arguments: Any) -> None:
        super().__init__(weight_transfer=_NoTransfer(), **trainer_arguments)
        self.failure: SyncError | None = None
        self._kept: deque[Json] = deque(maxlen=_KEPT_ROLLOUTS)
        self._syncs: SimpleQueue[Mapping[str, float]] = SimpleQueue()
        self.rollout_queue: Any = _Tap(self.rollout_worker.rollout_buffer, self._kept)
        if isinstance(self.rollout_worker, RolloutWorker):
            self.rollout_worker.wait_at_most(self.args.weight_sync_timeout)
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)

    def named_tensors(self) -> NamedTensors:
        for name, parameter in self.accelerator.unwrap_model(self.model).named_parameters():
            yield name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", ""), parameter.detach()

    def acknowledge(self, version: int) -> None:
        """Rollouts that start from now on are of this version. May be called from any thread."""
        self.rollout_worker.update_model_version(version)

    def report_sync(self, metrics: Mapping[str, float]) -> None:
        """Logged with the next step, beside TRL's own metrics. May be called from any thread."""
        self._syncs.put(metrics)

    def get_batch_samples(self, *arguments: Any) -> tuple[list[Any], Any]:
        try:
            samples: tuple[list[Any], Any] = super().get_batch_samples(*arguments)
        except SyncError as error:  # the rollouts ended
            self._stop(error)
            return [], None
        return samples

    def _sync_weight(self) -> None:
        try:
            self.model_version = self.policy_sync(self.named_tensors, self._step_numbers(), list(self._kept))
        except StoppedError as error:
            self._stop(error)
        while not self._syncs.empty():
            for name, value in self._syncs.get().items():
                self._metrics["train"][name].append(value)

    def _stop(self, reason: SyncError) -> None:
        """End with a checkpoint instead of an error, once there is something to save."""
        if self.state.global_step == self._initial_global_step:
            raise reason
        self.failure = reason
        self.control.should_save = self.control.should_training_stop = True

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        checkpoint.begin(folder)
        limit, self.args.save_total_limit = self.args.save_total_limit, None  # older ones go once this one is whole
        try:
            super()._save_checkpoint(model, trial)
        except (SafetensorError, RuntimeError) as error:
            raise SyncError(f"checkpoint {folder} cannot be saved: {error}; is the disk full?") from error
        finally:
            self.args.save_total_limit = limit
        checkpoint.complete(folder, self.policy_sync.checkpoint_state(self.named_tensors))
        rotate_checkpoints(str(folder.parent), limit, self.state.best_model_checkpoint, use_mtime=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        with checkpoint.loading(resume_from_checkpoint, "the model"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        with checkpoint.loading(str(folder), "the optimizer's state"):
            super()._load_optimizer_and_scheduler(folder)

    def _load_rng_state(self, folder: str | None) -> None:
        with checkpoint.loading(str(folder), "the random numbers' state"):
            super()._load_rng_state(folder)

    def _step_numbers(self) -> Json:
        """TRL's own metrics of the step that has just ended, before TRL logs and clears them."""
        sink = self._metrics["train"]
        keys = [key for key in sink if key in _NUMBERS or key.startswith(_NUMBERS_OF)]
        counted = {key: _counted(key, sink[key]) for key in keys}
        numbers = {key: async_grpo_trainer._reduce_metric(key, values) for key, values in counted.items() if values}
        limits = {"max_steps": self.state.max_steps, "sample/staleness_limit": self.args.max_staleness}
        return {"step": self.state.global_step, **limits, **numbers} if numbers else {}


class RolloutLoop(async_rollout_worker._AsyncRolloutLoop):
    """Runs in TRL's rollout child: requests with our headers, patience, and rewards with parts."""

    def __init__(self, *, patience_s: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._patience = rollout_requests.Patience(self.vllm_server_url, patience_s)

    def run(self) -> None:
        with suppress(SyncError):  # the trainer has been told
            super().run()

    async def _retry(self, ask: Callable[[], Awaitable[Json]], *, label: str, max_attempts: int = 1) -> Json:
        """TRL gives up after some attempts; a Space may be away for minutes."""
        return await self._patience.ask(ask, self._count_retry)

    def _count_retry(self) -> None:
        self._counters["rollout/vllm_retry_total"] += 1

    async def _post(self, path: str, payload: Json, timeout: float, max_retries: int = 1) -> Json:
        """Once: whoever calls it retries."""
        return await rollout_requests.post(self.session, f"{self.vllm_server_url}{path}", payload, timeout)

    async def _score_group(self, group: Any) -> list[Any]:
        samples = await super()._score_group(group)
        rows = iter(samples)
        lost = sum(reward is None for _, reward in filter(None, group.env_rewards))
        self._counters["environment/unscorable_total"] += lost
        for sequences, scored in zip(group.completions_sequences, group.env_rewards, strict=False):
            reward = scored[1] if scored else None
            parts = reward.parts if isinstance(reward, Reward) else {}
            for _ in sequences:
                next(rows).metrics.update({f"environment/{name}": value for name, value in parts.items()})
        return list(samples)


class RolloutWorker(async_rollout_worker.AsyncRolloutWorker):
    """TRL's handle on the rollout child; a child that failed is told in one sentence."""

    _loop_cls = RolloutLoop
    _process: Any

    def wait_at_most(self, seconds: float) -> None:
        """How long rollouts wait for a Space that is away."""
        self._loop_kwargs["patience_s"] = seconds

    def start(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the child inherits it: Ctrl-C is the trainer's
        try:
            super().start()
        except (RuntimeError, TypeError) as error:
            raise SyncError(f"the rollouts could not start: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def check_health(self, stale_after_s: float) -> None:
        try:
            super().check_health(stale_after_s)
        except RuntimeError as error:
            reason = str(error.__cause__ or error).splitlines()[0].removeprefix("SyncError: ")
            raise SyncError(f"the rollouts stopped: {reason}") from error
        if self._process is not None and not self._process.is_alive():
            raise SyncError(f"the rollouts stopped: their process ended with exit code {self._process.exitcode}")

    def stop(self) -> None:
        child = self._process
        if child is not None and child.is_alive() and isinstance(sys.exception(), KeyboardInterrupt):
            child.kill()  # TRL would give its requests 15 s to end
            child.join()
        if child is not None and not child.is_alive():
            self._process = None  # TRL's stop event would wait for ever for the dead child's thread to wake
        super().stop()


class _Tap:
    """TRL's sample queue; a few of the samples that pass are kept to be read by people."""

    def __init__(self, samples: Any, kept: deque[Json]) -> None:
        self._samples = samples
        self._kept = kept

    def get(self, timeout: float) -> Any:
        sample = self._samples.get(timeout=timeout)
        messages = [*sample.prompt, *sample.completion]
        numbers = {name: value if math.isfinite(value) else str(value) for name, value in sample.metrics.items()}
        self._kept.append({"version": sample.model_version, "messages": messages, "numbers": numbers})
        return sample

    def qsize(self) -> int:
        return int(self._samples.qsize())


class _NoTransfer:
    """TRL's own transfer is not used: `_sync_weight` above replaces every call of it but the first and the last."""

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def destroy(self) -> None:
        """Nothing to release."""


def _counted(key: str, values: Sequence[Any]) -> Sequence[Any]:
    """A lost episode has no reward, and does not count beside others. Any other number that is NaN has diverged."""
    known = [value for value in values if isinstance(value, tuple) or not math.isnan(value)]
    return known if known and key.startswith(_OF_EPISODES) else values


def _rollout_child(*arguments: Any) -> None:
    """TRL's rollout child. Being of this module, it has TRL imported without vLLM there too."""
    rollout_child.end_with_parent()
    logging.getLogger(async_rollout_worker.__name__).addFilter(rollout_child.without_known_trace)
    _child_main(*arguments)
    if arguments[_STOPPED].is_set():  # nobody reads the queues any more, and leaving would wait for a reader
        for queue in (arguments[_SAMPLES], arguments[_METRICS]):
            queue.cancel_join_thread()


def _peak_flops_where_known(accelerator: Any, dtype: str) -> float | None:
    return _peak_flops(accelerator, dtype) if torch.cuda.is_available() else None


packing._flash_attn = lambda: attention
async_rollout_worker.is_vllm_available = lambda: True
async_rollout_worker._child_main = _rollout_child
async_grpo_trainer.AsyncRolloutWorker = RolloutWorker
async_grpo_trainer.get_peak_flops_per_device = _peak_flops_where_known
