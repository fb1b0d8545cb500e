"""How sparse the next step would be at other learning rates: the optimizer's own direction, scaled, through the cast.

A tiny model needs larger steps than a large one, so its measured sparsity says little about large models. RL-size
means the ratio of step to weight that a learning rate of 1e-6 has on weights of the usual scale of 0.02.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from shared.bits import bits
from shared.output import say
from shared.types import Json

FILE = "sparsity.json"
RL_RELATIVE_STEP = 1e-6 / 0.02

_Update = tuple[torch.Tensor, torch.Tensor]


def sparsity_at(optimizer: torch.optim.Optimizer, learning_rate: float, dtype: torch.dtype) -> float:
    """Share of elements whose `dtype` bits one more AdamW step at `learning_rate` leaves as they are (no decay)."""
    kept = total = 0
    for weight, direction in _updates(optimizer):
        before, after = weight.to(dtype), (weight - learning_rate * direction).to(dtype)
        kept += int((bits(before) == bits(after)).sum())
        total += weight.numel()
    return kept / total if total else 1.0


def weight_scale(optimizer: torch.optim.Optimizer) -> float:
    """Root mean square of all weights that the optimizer moves."""
    squares = count = 0.0
    for weight, _ in _updates(optimizer):
        squares += float(weight.double().square().sum())
        count += weight.numel()
    return math.sqrt(squares / count) if count else 0.0


class SparsityReport(TrainerCallback):
    """At the end of training, writes and prints the sparsity at the run's learning rate and at an RL-size step.

    Silent for an optimizer that is not Adam's kind, and when no step was taken.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._path = folder / FILE
        self._dtype = dtype

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: torch.optim.Optimizer,
        **_: Any,
    ) -> None:
        if not any(True for _ in _updates(optimizer)):
            return
        rates = {"run": args.learning_rate, "rl_size": RL_RELATIVE_STEP * weight_scale(optimizer)}
        found: Json = {
            name: {"learning_rate": rate, "sparsity": sparsity_at(optimizer, rate, self._dtype)}
            for name, rate in rates.items()
        }
        self._path.write_text(json.dumps(found) + "\n")
        at = {
            name: f"{item['sparsity']:.4f} at learning rate {item['learning_rate']:.1e}"
            for name, item in found.items()
        }
        say(f"sparsity of one more step: {at['run']}, {at['rl_size']} (RL-size relative to these weights)")


def _updates(optimizer: torch.optim.Optimizer) -> Iterator[_Update]:
    """Each weight with the direction AdamW would take it, from its bias-corrected moments (arXiv:1711.05101)."""
    inner: torch.optim.Optimizer = vars(optimizer).get("optimizer", optimizer)  # accelerate wraps it
    for group in inner.param_groups:
        for weight in group["params"]:
            moments = inner.state.get(weight, {})
            if "exp_avg_sq" in moments:
                beta1, beta2 = group["betas"]
                step = float(moments["step"])
                mean = moments["exp_avg"] / (1 - beta1**step)
                spread = (moments["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"]
                yield weight.detach(), mean / spread
