"""A run that starts from its base model by reference: it is read from where it lies, and believed by its bits."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shared.base_model import load_base
from shared.errors import ChainError, IntegrityError
from shared.follower import Follower
from shared.types import Base
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, copies, model, nudge, same
from trainer_box.publisher import Publisher


def saved(folder: Path, weights: Weights) -> Path:
    """A model in two files, as large ones are."""
    folder.mkdir(exist_ok=True)
    names = sorted(weights)
    for number, part in enumerate((names[:1], names[1:]), start=1):
        save_file({name: weights[name] for name in part}, folder / f"model-{number:05d}-of-00002.safetensors")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", {name: tensor.float() for name, tensor in model().items()})


@pytest.fixture
def bucket(folder: Path) -> MemoryBucket:
    """Run "r": the base model as version 0, and one delta."""
    bucket, weights = MemoryBucket(), {name: tensor.float() for name, tensor in model().items()}
    with Publisher(bucket, "counting", serving_dtype=torch.bfloat16) as publisher:
        base = Base(str(folder), fingerprint=publisher.count(weights.items()))
    with Publisher(bucket, "r", base=base, serving_dtype=torch.bfloat16) as publisher:
        assert publisher.publish(weights.items()).nbytes == 0
        weights["norm.weight"][3] = 7.0
        publisher.publish(weights.items())
    return bucket


def newest() -> Weights:
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in model().items()}
    weights["norm.weight"][3] = 7.0
    return weights


def test_nothing_is_filled_from_the_base_model_and_the_deltas(bucket: MemoryBucket) -> None:
    weights: Weights = {}
    assert Follower(bucket, "r").catch_up(weights).version == 1
    assert same(weights, newest())


def test_other_weights_are_replaced_from_the_base_model(bucket: MemoryBucket) -> None:
    weights = newest()
    nudge(weights, 1)
    assert Follower(bucket, "r").catch_up(weights).version == 1
    assert same(weights, newest())


def test_a_base_model_that_is_another_by_now_is_refused_and_nothing_changes(
    bucket: MemoryBucket, folder: Path
) -> None:
    other = {name: tensor.float() for name, tensor in model().items()}
    other["norm.weight"][0] += 1
    saved(folder, other)
    weights = newest()
    nudge(weights, 1)
    before = copies(weights)
    with pytest.raises(ChainError, match="base model of run 'r'.*has fingerprint .* pass the weights"):
        Follower(bucket, "r").catch_up(weights)
    assert same(weights, before)


def test_without_the_base_model_there_is_no_path(bucket: MemoryBucket, folder: Path) -> None:
    shutil.rmtree(folder)
    with pytest.raises(ChainError, match="no safetensors files of model"):
        Follower(bucket, "r").catch_up({})
    held = newest()
    assert Follower(bucket, "r").catch_up(held).version == 1, "which needs no base model"


def test_a_damaged_file_of_a_base_model_is_named(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(IntegrityError, match="model-00002-of-00002.safetensors of base model"):
        load_base(Base(str(folder)))


def test_a_base_model_is_cast_only_where_the_run_says_so(folder: Path) -> None:
    assert {tensor.dtype for tensor in load_base(Base(str(folder))).values()} == {torch.float32}
    assert {tensor.dtype for tensor in load_base(Base(str(folder), dtype="F16")).values()} == {torch.float16}


def test_a_run_without_a_base_model_says_so() -> None:
    with pytest.raises(ChainError, match="names no base model"):
        load_base(Base())
