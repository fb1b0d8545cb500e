"""How much memory training a model takes, estimated from its configuration before anything of it is loaded.

An estimate: parameters, gradients and Adam's two moments are exact; activations are counted for a transformer of the
usual make, in the longest row that is trained on. Not compared with a GPU yet.
"""

from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from shared.errors import SyncError
from shared.output import say
from trainer_box.trl_adapter import TrainingConfig

BROKEN_MODEL = (OSError, ValueError, LookupError, ArithmeticError, RuntimeError)
"""What transformers raises where a model cannot be had, or where its configuration makes none."""

_TRAINED_BYTES = {"float32": 16, "bfloat16": 8}  # per parameter: itself, its gradient and AdamW's two moments
_BASELINE_BYTES = 2  # per parameter, on the CPU: what the bucket holds, in bf16
_ACTIVATION_BYTES = 4
_SAVED_PER_LAYER = 1  # hidden states per token where the rest is computed again
_MADE_PER_LAYER = 12  # hidden states per token, and three rows of the feed-forward layer


@dataclass(frozen=True)
class Need:
    """In bytes: `training` and `activations` where the model is, `baseline` in the memory of the machine."""

    parameters: int
    training: int
    activations: int
    baseline: int

    def told(self) -> str:
        return (
            f"{self.parameters / 1e6:.0f} M parameters take {_size(self.training)} for weights, gradients and "
            f"AdamW, and activations about {_size(self.activations)}"
        )


def estimate(config: PretrainedConfig, row: int, dtype: str, checkpointing: bool) -> Need:
    """`row` is the number of tokens that go through the model at once."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    return Need(
        parameters=count,
        training=count * _TRAINED_BYTES.get(dtype, 16),
        activations=_activations(config, row, checkpointing),
        baseline=count * _BASELINE_BYTES,
    )


def check(model: str, training: TrainingConfig) -> None:
    """Say what it takes, and raise SyncError where that is more than there is. A model that cannot be had is said to
    be so when it is loaded."""
    try:
        config = AutoConfig.from_pretrained(model)
        need = estimate(config, row_of(training), str(training.dtype), training.gradient_checkpointing)
    except BROKEN_MODEL:
        return
    on_gpu = torch.cuda.is_available() and not training.use_cpu
    machine = available_bytes()
    if on_gpu:
        free, total = torch.cuda.mem_get_info()
        _compare(need.told(), need.training + need.activations, free, f"free of the GPU's {_size(total)}")
        _compare(f"of these weights a copy is kept in bf16, {_size(need.baseline)}", need.baseline, machine, "free")
    else:
        everything = need.training + need.activations + need.baseline
        _compare(f"{need.told()}, and a copy in bf16 {_size(need.baseline)}", everything, machine, "free")


def row_of(training: TrainingConfig) -> int:
    """Tokens that go through the model at once, at most."""
    if training.token_budget:
        return int(training.token_budget)
    return int(training.per_device_train_batch_size) * int(training.max_completion_length)


def available_bytes() -> int:
    """What this machine can still give without swapping; Linux says so."""
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["MemAvailable"].split()[0]) * 1024


def _compare(told: str, needed: int, free: int, where: str) -> None:
    if needed > free:
        raise SyncError(
            f"{told}: {_size(needed)}, but only {_size(free)} are {where}; train a smaller model, take a "
            "larger machine, or lower --token-budget"
        )
    say(f"{told}: {_size(needed)} of {_size(free)} {where}")


def _activations(config: PretrainedConfig, row: int, checkpointing: bool) -> int:
    text = config.get_text_config()
    inner = text.to_dict().get("intermediate_size") or 4 * text.hidden_size
    layer = _MADE_PER_LAYER * text.hidden_size + 3 * inner
    saved = _SAVED_PER_LAYER * text.hidden_size if checkpointing else layer
    per_token: int = saved * text.num_hidden_layers + (layer if checkpointing else 0)
    return row * per_token * _ACTIVATION_BYTES


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
