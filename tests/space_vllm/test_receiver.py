"""Staging changes nothing, applying is whole or taken back."""

import time
from pathlib import Path

import pytest

from shared import fingerprint
from shared.errors import SyncError
from shared.types import Manifest
from space_vllm.receiver import Progress, Receiver
from tests.space_vllm.fakes import DictPlacement, equal, make_weights, publisher


def settled(receiver: Receiver) -> Progress:
    deadline = time.monotonic() + 10
    while (progress := receiver.poll()).state == "working" and time.monotonic() < deadline:
        time.sleep(0.01)
    return progress


def joined(live_seed: int = 1) -> tuple[Receiver, DictPlacement]:
    placement = DictPlacement(make_weights(live_seed))
    receiver = Receiver(placement)
    receiver.join(lambda: make_weights(live_seed))
    assert settled(receiver).state == "ready"
    return receiver, placement


@pytest.fixture
def delta(tmp_path: Path) -> tuple[Manifest, list[Path]]:
    """From version 0, the weights of seed 1, to version 1."""
    with publisher(tmp_path, "run") as out:
        out.publish(make_weights(1).items())
        manifest = out.publish(make_weights(1, step=1).items())
    assert manifest.kind == "delta"
    return manifest, [tmp_path / file.path for file in manifest.files]


def test_joining_counts_the_base() -> None:
    receiver, _ = joined()
    assert settled(receiver).fingerprint == fingerprint.to_text(fingerprint.fingerprint(make_weights(1)))


def test_staging_leaves_the_live_model_alone(delta: tuple[Manifest, list[Path]]) -> None:
    receiver, placement = joined()
    receiver.stage(*delta)
    assert settled(receiver) == Progress("ready", fingerprint=delta[0].fingerprint)
    assert equal(placement.live, make_weights(1))


def test_applying_places_what_is_staged(delta: tuple[Manifest, list[Path]]) -> None:
    receiver, placement = joined()
    receiver.stage(*delta)
    settled(receiver)
    outcome = receiver.apply()
    assert (outcome.error, outcome.dirty, outcome.fingerprint) == ("", False, delta[0].fingerprint)
    assert equal(placement.live, make_weights(1, step=1))


def test_an_anchor_without_a_tensor_that_is_live_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    receiver, placement = joined()
    some = dict(list(make_weights(2).items())[1:])
    with publisher(tmp_path, "run") as out:
        anchor = out.publish(some.items())
    receiver.stage(anchor, [tmp_path / file.path for file in anchor.files])
    settled(receiver)
    outcome = receiver.apply()
    assert "1 live tensors are missing" in outcome.error
    assert not outcome.dirty
    assert equal(placement.live, make_weights(1))


def test_a_delta_on_another_base_is_not_staged(delta: tuple[Manifest, list[Path]]) -> None:
    receiver, _ = joined(live_seed=2)
    receiver.stage(*delta)
    progress = settled(receiver)
    assert (progress.state, progress.error_kind) == ("failed", "ChainError")


def test_a_file_that_cannot_be_read_is_a_failed_staging(delta: tuple[Manifest, list[Path]], tmp_path: Path) -> None:
    receiver, _ = joined()
    receiver.stage(delta[0], [tmp_path / "absent.safetensors"])
    progress = settled(receiver)
    assert (progress.state, progress.error_kind) == ("failed", "FileNotFoundError")


def test_nothing_staged_cannot_be_applied(delta: tuple[Manifest, list[Path]]) -> None:
    receiver, _ = joined()
    receiver.stage(*delta)
    receiver.discard()
    with pytest.raises(SyncError, match="no version is staged"):
        receiver.apply()


def test_a_failed_apply_is_taken_back_and_can_be_repeated(delta: tuple[Manifest, list[Path]]) -> None:
    receiver, placement = joined()
    receiver.stage(*delta)
    settled(receiver)
    placement.failures = 1
    outcome = receiver.apply()
    assert not outcome.dirty
    assert "the loader broke" in outcome.error
    assert equal(placement.live, make_weights(1))
    receiver.stage(*delta)
    settled(receiver)
    assert receiver.apply().error == ""
    assert equal(placement.live, make_weights(1, step=1))


def test_an_apply_that_cannot_be_taken_back_leaves_the_model_in_doubt(delta: tuple[Manifest, list[Path]]) -> None:
    receiver, placement = joined()
    receiver.stage(*delta)
    settled(receiver)
    placement.failures = 2
    assert receiver.apply().dirty
