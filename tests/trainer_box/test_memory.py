"""What training takes is said before anything is loaded, and refused with numbers where there is less."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from shared.errors import SyncError
from trainer_box import memory
from trainer_box.deploy.hardware import MODELS, Model
from trainer_box.tiny_policy import tiny_policy_path
from trainer_box.trl_adapter import TrainingConfig

TINY = str(tiny_policy_path())


def qwen3(hidden: int, inner: int, layers: int, heads: int, tied: bool = True) -> Qwen3Config:
    """The shapes of the released models."""
    return Qwen3Config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=tied,
    )


SHAPES = [
    qwen3(1024, 3072, 28, 16),
    qwen3(2048, 6144, 28, 16),
    qwen3(2560, 9728, 36, 32),
    qwen3(4096, 12288, 36, 32, tied=False),
]


@pytest.fixture
def training(tmp_path: Path) -> TrainingConfig:
    return TrainingConfig(output_dir=str(tmp_path), token_budget=4096)


@pytest.mark.parametrize(
    ("model", "config"), list(zip(MODELS, SHAPES, strict=True)), ids=[model.name for model in MODELS]
)
def test_parameters_are_counted_without_loading_them(model: Model, config: Qwen3Config) -> None:
    need = memory.estimate(config, 8192, "float32", checkpointing=True)
    assert need.parameters == model.parameters
    assert (need.training, need.baseline) == (16 * need.parameters, 2 * need.parameters)


def test_training_takes_what_is_said_per_parameter() -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = [*model.parameters(), *(parameter.grad for parameter in model.parameters()), *moments]
    taken = sum(tensor.numel() * tensor.element_size() for tensor in held if tensor is not None)
    assert memory.estimate(model.config, 1, "float32", checkpointing=False).training == taken


def test_checkpointing_and_shorter_rows_take_less() -> None:
    long, short = (memory.estimate(SHAPES[0], row, "float32", True).activations for row in (8192, 2048))
    assert long == 4 * short
    assert memory.estimate(SHAPES[0], 2048, "float32", False).activations > 4 * short


def test_a_machine_with_too_little_memory_is_refused_with_both_numbers(
    training: TrainingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 10_000_000)
    with pytest.raises(SyncError, match=r"1 M parameters take 11 MB .*, but only 10 MB are free; train a"):
        memory.check(TINY, training)


def test_a_gpu_with_too_little_memory_is_refused_with_both_numbers(
    training: TrainingConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    SHAPES[1].save_pretrained(tmp_path / "model")
    monkeypatch.setattr(training, "use_cpu", False)
    monkeypatch.setattr(training, "gradient_checkpointing", True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (int(23e9), int(24e9)))
    sentence = (
        r"^1721 M parameters take 27\.5 GB for weights, gradients and AdamW, and activations about 1\.6 GB: 29\.2 GB, "
        r"but only 23\.0 GB are free of the GPU's 24\.0 GB; train a smaller model"
    )
    with pytest.raises(SyncError, match=sentence):
        memory.check(str(tmp_path / "model"), training)


def test_a_model_that_fits_is_told_in_a_line(training: TrainingConfig, capfd: pytest.CaptureFixture[str]) -> None:
    memory.check(TINY, training)
    assert "parameters take 11 MB for weights, gradients and AdamW" in capfd.readouterr().out


def test_a_model_that_is_not_there_is_for_the_loading_to_refuse(training: TrainingConfig) -> None:
    memory.check("/nowhere/at/all", training)


@pytest.mark.parametrize("change", [{"hidden_act": "none of them"}, {"num_attention_heads": 0}, {"vocab_size": -1}])
def test_a_configuration_that_makes_no_model_is_for_the_loading_to_refuse(
    training: TrainingConfig, tmp_path: Path, change: dict[str, Any]
) -> None:
    config = json.loads(Path(TINY, "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    memory.check(str(tmp_path), training)


def test_without_a_budget_the_row_is_the_batch(training: TrainingConfig) -> None:
    assert memory.row_of(training) == 4096
    training.token_budget, training.per_device_train_batch_size, training.max_completion_length = 0, 4, 100
    assert memory.row_of(training) == 400


def test_the_free_memory_of_this_machine_is_some_and_less_than_all() -> None:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    assert 0 < memory.available_bytes() <= int(lines["MemTotal"].split()[0]) * 1024
