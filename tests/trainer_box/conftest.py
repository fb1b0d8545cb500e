"""Buckets and Spaces that several modules' tests start from."""

from collections.abc import Iterator

import pytest

from tests.shared.fake_bucket import MemoryBucket
from tests.trainer_box.fake_space import KEY, FakeSpace, fake_space
from trainer_box import anchors as anchors_module


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    """Serves the model `tiny` to whoever has the key, as this process has."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with fake_space("tiny", key=KEY) as server:
        yield server


@pytest.fixture
def small_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra anchor as soon as the deltas have grown to more than the model, however small that is."""
    monkeypatch.setattr(anchors_module, "LEAST_BYTES", 0)


@pytest.fixture
def chains_of_5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors_module, "MOST_DELTAS", 5)
