"""Staging changes nothing; what is placed is held once it is read back, and can be put back until then."""

from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import torch

from shared import fingerprint
from shared.bits import bits
from shared.errors import IntegrityError, SyncError
from shared.files import Label, write_anchor, write_delta
from shared.types import Manifest
from space_vllm.outcomes import Placed, Progress, Verified
from space_vllm.placement import Weights
from space_vllm.receiver import Receiver
from tests.shared.weights import changes_between
from tests.space_vllm.driving import audited, settled, staged, sync, undone
from tests.space_vllm.fakes import DictModel, DictPlaces, equal, make_weights, publisher

SEED = 1


def text(weights: Weights) -> str:
    return fingerprint.to_text(fingerprint.fingerprint(weights))


@pytest.fixture
def model() -> DictModel:
    return DictModel(make_weights(SEED))


@pytest.fixture
def receiver(model: DictModel) -> Receiver:
    receiver = Receiver(model)
    receiver.join()
    assert settled(receiver).state == "ready"
    return receiver


@pytest.fixture
def versions(tmp_path: Path) -> list[Manifest]:
    """Version 0 is what the model has; then two deltas, the anchor of another publisher, and a delta on it."""
    with publisher(tmp_path, "run") as out:
        found = [out.publish(make_weights(SEED, step).items()) for step in range(3)]
    with publisher(tmp_path, "run") as out:
        found += [out.publish(make_weights(3, step).items()) for step in range(2)]
    assert [manifest.kind for manifest in found] == ["anchor", "delta", "delta", "anchor", "delta"]
    return found


def test_joining_counts_the_base(model: DictModel) -> None:
    receiver = Receiver(model)
    assert receiver.poll() == Progress("idle")
    receiver.join()
    assert settled(receiver) == Progress(
        "ready", fingerprint=text(make_weights(SEED)), places={"in_place": 3, "reloaded": 0}
    )
    with pytest.raises(SyncError, match="the base model is live already"):
        receiver.apply()


def test_a_live_model_that_is_not_its_files_cannot_join(model: DictModel) -> None:
    bits(model.live["norm.weight"])[3] ^= 1
    receiver = Receiver(model)
    receiver.join()
    progress = settled(receiver)
    assert (progress.state, progress.error_kind) == ("failed", "IntegrityError")
    assert "1 tensors of the live model, such as 'norm.weight', are not what their files hold" in progress.error
    assert receiver.audit().wrong == ("no version is known to be live",)


@pytest.mark.parametrize("number", [1, 3])
def test_staging_leaves_the_live_model_alone(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path, number: int
) -> None:
    manifest = versions[number]
    assert staged(receiver, manifest, tmp_path) == Progress(
        "ready", fingerprint=manifest.fingerprint, places={"in_place": 3, "reloaded": 0}
    )
    assert equal(model.live, make_weights(SEED))


def test_deltas_and_anchors_follow_each_other(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    for manifest in versions:
        assert sync(receiver, manifest, tmp_path) == Verified(manifest.fingerprint)
        assert receiver.poll() == Progress("idle")
    assert equal(model.live, make_weights(3, 1))
    assert audited(receiver).wrong == ()


@pytest.mark.parametrize("number", [1, 3])
def test_what_was_placed_can_be_put_back_and_placed_again(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path, number: int
) -> None:
    for _ in range(2):
        staged(receiver, versions[number], tmp_path)
        assert receiver.apply().error == ""
        placed, verified = undone(receiver)
        assert (placed.error, verified) == ("", Verified(versions[0].fingerprint))
        assert equal(model.live, make_weights(SEED))
    for manifest in versions[number : number + 2]:
        assert sync(receiver, manifest, tmp_path) == Verified(manifest.fingerprint)


def test_values_that_went_elsewhere_are_neither_version(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    staged(receiver, versions[1], tmp_path)
    model.skewed = 1
    assert receiver.apply().error == ""
    found = receiver.verify()
    assert not found.error and found.fingerprint not in (versions[0].fingerprint, versions[1].fingerprint)
    assert receiver.verify() == found, "it may be asked again, and nothing is settled"
    _, verified = undone(receiver)
    assert verified.fingerprint != versions[0].fingerprint, "what was written elsewhere is not put back"
    receiver.lose()
    assert sync(receiver, versions[3], tmp_path) == Verified(versions[3].fingerprint)


def test_of_bits_that_are_not_read_back_as_they_were_placed_the_fingerprint_is_counted(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    staged(receiver, versions[1], tmp_path)
    receiver.apply()
    change = changes_between(make_weights(SEED), make_weights(SEED, 1))[0]
    bits(model.live[change.spec.name])[change.indices[0]] ^= 1
    assert receiver.verify() == Verified(text(model.live))


def test_a_loader_that_breaks_half_way_is_put_back(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    for number in (1, 3):
        staged(receiver, versions[number], tmp_path)
        model.failures = 1
        assert receiver.apply().error == "RuntimeError('the loader broke')"
        assert not equal(model.live, make_weights(SEED))
        assert undone(receiver)[1] == Verified(versions[0].fingerprint)
        assert equal(model.live, make_weights(SEED))


def test_an_undo_that_breaks_says_so_and_settles_nothing(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    staged(receiver, versions[1], tmp_path)
    model.failures = 2
    receiver.apply()
    placed, verified = undone(receiver)
    assert placed.error == "RuntimeError('the loader broke')"
    assert verified == Verified(versions[0].fingerprint), "the first tensor was the only one written"
    assert receiver.undo().error == "there is no earlier version to put back"


class Unreadable(DictPlaces):
    def check(self) -> None:
        raise IntegrityError("the padding holds a 1")


def test_a_live_model_that_cannot_be_read_back_is_no_version(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    model.__dict__["find"] = lambda tensors: Unreadable(model)
    staged(receiver, versions[3], tmp_path)
    assert receiver.apply().error == ""
    assert receiver.verify() == Verified(
        error="version 3 cannot be read back: IntegrityError('the padding holds a 1')"
    )
    assert undone(receiver)[1] == Verified(versions[0].fingerprint)


def test_a_delta_is_only_staged_on_its_base(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    def refusal(manifest: Manifest) -> str:
        progress = staged(receiver, manifest, tmp_path)
        assert (progress.state, progress.error_kind) == ("failed", "ChainError")
        return progress.error

    zero, one = versions[0].fingerprint, versions[1].fingerprint
    staged(receiver, versions[1], tmp_path)
    receiver.apply()  # and no verify: version 0 is still what is known to be live
    assert refusal(versions[2]) == f"delta 2 is based on version 1 ({one}), but version 0 ({zero}) is live"
    other = replace(versions[1], base_fingerprint="0123456789abcdef")
    assert refusal(other) == f"delta 1 is based on version 0 (0123456789abcdef), but version 0 ({zero}) is live"
    assert receiver.verify() == Verified(one)
    assert refusal(versions[1]) == f"delta 1 is based on version 0 ({zero}), but version 1 ({one}) is live"
    receiver.lose()
    assert refusal(versions[2]) == f"delta 2 is based on version 1 ({one}), but no known version is live"
    with pytest.raises(SyncError, match="no version is staged"):
        receiver.apply()


def test_files_that_are_absent_or_damaged_are_a_failed_staging(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    receiver.stage(versions[1], [tmp_path / "absent.safetensors"])
    progress = settled(receiver)
    assert (progress.state, progress.error_kind) == ("failed", "FileNotFoundError")
    for number in (1, 3):
        file = tmp_path / versions[number].path
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)
        progress = staged(receiver, versions[number], tmp_path)
        assert (progress.state, progress.error_kind) == ("failed", "IntegrityError")
        assert file.name in progress.error
    assert equal(model.live, make_weights(SEED))


def test_content_that_is_not_what_its_own_label_says_is_refused(
    receiver: Receiver, versions: list[Manifest], tmp_path: Path
) -> None:
    file, new = tmp_path / "mislabelled.safetensors", make_weights(SEED, 1)
    for number in (1, 3):
        manifest = replace(versions[number], fingerprint="0123456789abcdef")
        if manifest.kind == "anchor":
            write_anchor(file, Label.of(manifest), new)
        else:
            write_delta(file, Label.of(manifest), changes_between(make_weights(SEED), new), manifest.total, "packed")
        receiver.stage(manifest, [file])
        sentence = f"{manifest.kind} {number} leads to fingerprint {text(new)}, its manifest says 0123456789abcdef"
        assert settled(receiver) == Progress("failed", sentence, "IntegrityError")


def test_an_anchor_without_a_tensor_that_is_live_is_refused(
    receiver: Receiver, model: DictModel, tmp_path: Path
) -> None:
    with publisher(tmp_path, "part") as out:
        anchor = out.publish(list(make_weights(2).items())[1:])
    progress = staged(receiver, anchor, tmp_path)
    assert (progress.state, progress.error_kind) == ("failed", "SyncError")
    assert "embed.weight" in progress.error
    assert equal(model.live, make_weights(SEED))


def test_what_was_not_staged_or_placed_cannot_be_placed_or_verified(
    receiver: Receiver, versions: list[Manifest], tmp_path: Path
) -> None:
    staged(receiver, versions[1], tmp_path)
    receiver.discard()
    assert receiver.poll() == Progress("idle")
    with pytest.raises(SyncError, match="no version is staged"):
        receiver.apply()
    with pytest.raises(SyncError, match="nothing was placed"):
        receiver.verify()
    assert receiver.undo() == Placed("there is no earlier version to put back")


def test_after_a_loss_only_whole_weights_follow_and_nothing_can_be_put_back(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    receiver.lose()
    bits(model.live["norm.weight"])[3] ^= 1
    staged(receiver, versions[3], tmp_path)
    assert receiver.apply().error == ""
    assert receiver.undo().error == "there is no earlier version to put back"
    assert receiver.verify() == Verified(versions[3].fingerprint)
    assert sync(receiver, versions[4], tmp_path) == Verified(versions[4].fingerprint)
    assert equal(model.live, make_weights(3, 1))


def test_the_base_comes_back_from_its_own_files(
    receiver: Receiver, model: DictModel, versions: list[Manifest], tmp_path: Path
) -> None:
    sync(receiver, versions[3], tmp_path)
    receiver.lose()
    receiver.stage_base()
    assert settled(receiver).fingerprint == versions[0].fingerprint
    assert equal(model.live, make_weights(3))
    assert receiver.apply().error == ""
    assert receiver.verify() == Verified(versions[0].fingerprint)
    assert sync(receiver, versions[1], tmp_path) == Verified(versions[1].fingerprint)


def test_staging_takes_its_time_on_a_thread_and_can_be_given_up(model: DictModel) -> None:
    entered, gate = Event(), Event()

    class Slow(DictModel):
        def base(self) -> Weights:
            entered.set()
            assert gate.wait(10)
            return super().base()

    receiver = Receiver(Slow(make_weights(SEED)))
    receiver.join()
    assert entered.wait(10)
    assert receiver.poll() == Progress("working")
    with pytest.raises(SyncError, match="no version is staged"):
        receiver.apply()
    receiver.discard()
    assert receiver.poll() == Progress("idle")
    gate.set()
    receiver.join()
    assert settled(receiver).state == "ready"


def test_an_empty_tensor_and_an_empty_delta_are_synced_like_any_other(tmp_path: Path) -> None:
    weights = {**make_weights(SEED), "none": torch.empty(2, 0, 3)}
    receiver = Receiver(DictModel(weights))
    receiver.join()
    assert settled(receiver).fingerprint == text(weights)
    with publisher(tmp_path, "run") as out:
        manifests = [out.publish(weights.items()), out.publish(weights.items())]
    assert (manifests[1].kind, manifests[1].changed) == ("delta", 0)
    for manifest in manifests:
        assert sync(receiver, manifest, tmp_path) == Verified(text(weights))
