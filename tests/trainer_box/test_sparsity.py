"""The sparsity that is predicted is the one that an AdamW step leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from trainer_box import sparsity

BF16 = torch.bfloat16


def parameters() -> list[torch.nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(0.02 * torch.randn(shape, generator=random)) for shape in ((300, 40), (70,))]


def step(optimizer: torch.optim.Optimizer, weights: list[torch.nn.Parameter], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=random)
    optimizer.step()


def adamw(weights: list[torch.nn.Parameter], rate: float, steps: int) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    for seed in range(steps):
        step(optimizer, weights, seed)
    return optimizer


@pytest.mark.parametrize("rate", [1e-6, 2e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("steps", [1, 5])
def test_the_sparsity_at_a_learning_rate_is_that_of_the_step_taken_with_it(rate: float, steps: int) -> None:
    weights = parameters()
    optimizer = adamw(weights, rate, steps - 1)
    before = [weight.detach().clone() for weight in weights]
    step(optimizer, weights, seed=99)
    pairs = [(old.to(BF16), new.to(BF16)) for old, new in zip(before, weights, strict=True)]
    kept = sum(int((old.view(torch.int16) == new.detach().view(torch.int16)).sum()) for old, new in pairs)
    with torch.no_grad():
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(old)
    total = sum(weight.numel() for weight in weights)
    assert sparsity.sparsity_at(optimizer, rate, BF16) == pytest.approx(kept / total, abs=3 / total)


def test_smaller_steps_leave_more_as_it_is() -> None:
    optimizer = adamw(parameters(), 1e-4, 3)
    found = [sparsity.sparsity_at(optimizer, rate, BF16) for rate in (1e-2, 1e-4, 1e-6, 0.0)]
    assert found == sorted(found)
    assert found[0] < 0.1
    assert found[-1] == 1.0


def test_the_scale_is_the_root_mean_square_of_what_is_trained() -> None:
    weights = parameters()
    optimizer = adamw(weights, 0.0, 1)
    everything = torch.cat([weight.detach().reshape(-1) for weight in weights])
    assert sparsity.weight_scale(optimizer) == pytest.approx(float(everything.square().mean().sqrt()), rel=1e-5)


def end(folder: Path, optimizer: torch.optim.Optimizer, rate: float = 2e-4) -> None:
    arguments: Any = TrainingArguments(output_dir=str(folder), learning_rate=rate, use_cpu=True, report_to=[])
    callback = sparsity.SparsityReport(folder, BF16)
    callback.on_train_end(arguments, TrainerState(), TrainerControl(), optimizer=optimizer, model=None)


def test_the_end_of_training_reports_the_run_and_an_rl_size_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    optimizer = adamw(parameters(), 2e-4, 3)
    end(tmp_path, optimizer)
    found = json.loads((tmp_path / sparsity.FILE).read_text())
    scale = sparsity.weight_scale(optimizer)
    assert found["run"]["learning_rate"] == 2e-4
    assert found["rl_size"]["learning_rate"] == pytest.approx(1e-6 / 0.02 * scale)
    assert found["run"]["sparsity"] == sparsity.sparsity_at(optimizer, 2e-4, BF16)
    assert 0.9 < found["rl_size"]["sparsity"] < 1
    assert capfd.readouterr().out.startswith(f"sparsity of one more step: {found['run']['sparsity']:.4f} at learning")


def test_without_a_step_or_with_another_optimizer_there_is_no_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    end(tmp_path, adamw(parameters(), 2e-4, 0))
    weights = parameters()
    plain = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    step(plain, weights, seed=1)
    end(tmp_path, plain)
    assert not (tmp_path / sparsity.FILE).exists()
    assert capfd.readouterr().out == ""
