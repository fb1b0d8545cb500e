"""Each planted fault is seen, by reading back or by a recount, and then a verified version is live again."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shared.bits import bits
from shared.changes import Change
from shared.types import Manifest
from space_vllm.live import LiveTensor
from space_vllm.outcomes import Audited, Verified
from space_vllm.receiver import Receiver, Staged, Version
from tests.space_vllm.driving import audited, sync, undone
from tests.space_vllm.vllm_models import VOCABULARY, Rig, Weights, lfm2, load, nudge, qwen3, same, save

pytestmark = pytest.mark.slow  # imports vLLM

EMBEDDING, DOWN = "model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"
CONV, IN = "model.layers.0.conv.conv.weight", "model.layers.0.conv.in_proj.weight"
Load = Callable[[Iterable[tuple[str, torch.Tensor]]], set[str]]


@pytest.fixture(scope="package")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    models = {"plain": qwen3(tied=True), "conv": lfm2()}
    return {name: save(model, tmp_path_factory.mktemp(name) / "model") for name, model in models.items()}


@pytest.fixture
def rig(folders: dict[str, Path], tmp_path: Path) -> Rig:
    """All tensors are written in place; version 1 is live."""
    return started(load(folders["plain"], "bfloat16"), tmp_path)


@pytest.fixture
def conv(folders: dict[str, Path], tmp_path: Path) -> Rig:
    """Three tensors are reloaded by vLLM; version 1 is live."""
    return started(load(folders["conv"], "bfloat16"), tmp_path)


def started(loaded: Any, folder: Path) -> Rig:
    rig = Rig(loaded, folder / "bucket")
    assert rig.joined.error == ""
    nudge(rig.weights, 1)
    rig.follow()
    return rig


def stage(rig: Rig, *, anchor: bool = False) -> Manifest:
    """The next version."""
    rig.replace_all(2) if anchor else nudge(rig.weights, 2)
    manifest = rig.publish()
    assert rig.stage(manifest).error == ""
    return manifest


def is_neither(found: Verified, rig: Rig, manifest: Manifest) -> bool:
    return not found.error and found.fingerprint not in (rig.served.fingerprint, manifest.fingerprint)


def goes_back_and_on(rig: Rig, before: Weights, manifest: Manifest, folder: Path) -> bool:
    """The version before is put back and verified, and without the fault the missed one follows."""
    placed, verified = undone(rig.receiver)
    assert (placed.error, verified) == ("", Verified(rig.served.fingerprint))
    assert same(rig.loaded.live(), before)
    assert sync(rig.receiver, manifest, rig.bucket) == Verified(manifest.fingerprint)
    return rig.is_where_a_fresh_model_is(folder)


def comes_back(rig: Rig, folder: Path) -> bool:
    """After a loss an anchor and two deltas are verified, and the weights are those of a fresh model."""
    rig.receiver.lose()
    rig.replace_all(3)
    rig.follow()
    for seed in (4, 5):
        nudge(rig.weights, seed)
        rig.follow()
    return rig.is_where_a_fresh_model_is(folder)


def faulty_writes(patch: pytest.MonkeyPatch, fault: Callable[[Callable[[LiveTensor, Change], None]], Any]) -> None:
    patch.setattr(LiveTensor, "write", fault(LiveTensor.write))


def faulty_loader(rig: Rig, patch: pytest.MonkeyPatch, fault: Callable[[Load], Load]) -> None:
    model: Any = rig.loaded.model
    patch.setattr(model, "load_weights", fault(model.load_weights))


def one_off(write: Callable[[LiveTensor, Change], None]) -> Any:
    return lambda live, change: write(live, replace(change, indices=(change.indices + 1) % change.spec.numel))


def skipping(name: str) -> Callable[[Callable[[LiveTensor, Change], None]], Any]:
    return lambda write: lambda live, change: None if change.spec.name == name else write(live, change)


def straying(write: Callable[[LiveTensor, Change], None]) -> Any:
    """Also changes an element that nobody asked for."""

    def stray(live: LiveTensor, change: Change) -> None:
        write(live, change)
        free = next(index for index in range(change.spec.numel) if index not in set(change.indices.tolist()))
        bits(live.regions[0].live().view(-1))[free] ^= 1

    return stray


def dropping(name: str) -> Callable[[Load], Load]:
    return lambda load: lambda weights: load((key, tensor) for key, tensor in weights if key != name)


def breaking(after: int) -> Callable[[Load], Load]:
    def first(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for number, item in enumerate(weights):
            if number == after:
                raise OSError("the disk is gone")
            yield item

    return lambda load: lambda weights: load(first(weights))


class Losing(TorchDispatchMode):
    """Does not make copies of so many elements into real memory."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self._numel = numel

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[0].numel() == self._numel and not args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def losing(numel: int) -> Callable[[Load], Load]:
    def lossy(load: Load, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        with Losing(numel):
            return load(weights)

    return lambda load: lambda weights: lossy(load, weights)


def test_values_one_element_off_are_seen_and_whole_weights_help(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_writes(monkeypatch, one_off)
    manifest = stage(rig)
    assert rig.receiver.apply().error == ""
    assert is_neither(rig.receiver.verify(), rig, manifest)
    monkeypatch.undo()
    assert is_neither(undone(rig.receiver)[1], rig, manifest), "what was overwritten by mistake is not put back"
    assert comes_back(rig, tmp_path / "fresh")


def test_a_tensor_that_is_not_written_is_seen_and_undone(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rig.loaded.live()
    faulty_writes(monkeypatch, skipping(DOWN))
    manifest = stage(rig)
    assert rig.receiver.apply().error == ""
    assert is_neither(rig.receiver.verify(), rig, manifest)
    monkeypatch.undo()
    assert goes_back_and_on(rig, before, manifest, tmp_path / "fresh")


@pytest.mark.parametrize("name", [EMBEDDING, DOWN])
def test_a_tensor_that_the_loader_skips_in_an_anchor_is_seen_and_undone(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = rig.loaded.live()
    manifest = stage(rig, anchor=True)
    faulty_loader(rig, monkeypatch, dropping(name))
    assert rig.receiver.apply().error == ""
    assert is_neither(rig.receiver.verify(), rig, manifest)
    monkeypatch.undo()
    assert goes_back_and_on(rig, before, manifest, tmp_path / "fresh")


@pytest.mark.parametrize("after", [1, 10])
def test_a_loader_that_raises_half_way_is_undone(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    before = rig.loaded.live()
    manifest = stage(rig, anchor=True)
    faulty_loader(rig, monkeypatch, breaking(after))
    assert "the disk is gone" in rig.receiver.apply().error
    assert not same(rig.loaded.live(), before)
    assert is_neither(rig.receiver.verify(), rig, manifest)
    monkeypatch.undo()
    assert goes_back_and_on(rig, before, manifest, tmp_path / "fresh")


def test_padding_that_is_not_zero_is_seen_and_an_anchor_clears_it(rig: Rig, tmp_path: Path) -> None:
    rig.loaded.model.get_parameter(EMBEDDING).data[VOCABULARY + 3, 5] = -0.0
    stage(rig)
    rig.receiver.apply()
    sentence = f"IntegrityError(\"the padding of live parameter '{EMBEDDING}' holds values that are not 0\")"
    assert rig.receiver.verify() == Verified(error=f"version 2 cannot be read back: {sentence}")
    assert undone(rig.receiver)[1] == Verified(error=f"version 1 cannot be read back: {sentence}")
    assert comes_back(rig, tmp_path / "fresh")
    rig.loaded.model.get_parameter(EMBEDDING).data[-1, -1] = 1.0
    assert audited(rig.receiver).wrong == (f"the padding of live parameter '{EMBEDDING}' holds values that are not 0",)


def test_a_write_elsewhere_is_found_by_the_recount_and_nothing_is_written_in_place_any_more(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_writes(monkeypatch, straying)
    manifest = stage(rig)
    assert rig.receiver.apply().error == ""
    assert rig.receiver.verify() == Verified(manifest.fingerprint)
    found = audited(rig.receiver)
    assert set(found.wrong) == set(rig.weights)
    assert rig.receiver.audit().wrong == ("no version is known to be live",)
    assert comes_back(rig, tmp_path / "fresh"), "the fault is still there, but nothing takes its way"
    nudge(rig.weights, 6)
    assert rig.stage(rig.publish()).places == {"in_place": 0, "reloaded": len(rig.weights)}


def test_a_verify_that_lies_is_found_by_the_recount(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(receiver: Receiver, expected: Version, staged: Staged) -> str:
        return expected.fingerprint

    faulty_writes(monkeypatch, skipping(DOWN))
    monkeypatch.setattr(Receiver, "_found", lie)
    manifest = stage(rig)
    assert rig.receiver.apply().error == ""
    assert rig.receiver.verify() == Verified(manifest.fingerprint)
    assert audited(rig.receiver) == Audited("done", (DOWN,))
    assert comes_back(rig, tmp_path / "fresh")


def test_without_trust_a_delta_goes_through_the_loader_and_can_be_undone(rig: Rig, tmp_path: Path) -> None:
    rig.model.distrust()
    before = rig.loaded.live()
    manifest = stage(rig)
    assert rig.receiver.apply().error == ""
    assert goes_back_and_on(rig, before, manifest, tmp_path / "fresh")


@pytest.mark.parametrize(("lost", "name"), [(64 * 64, IN), (64 * 3, CONV)])
@pytest.mark.parametrize("anchor", [False, True])
def test_a_reload_that_takes_less_than_in_the_rehearsal_is_an_error_and_undone(
    conv: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anchor: bool, lost: int, name: str
) -> None:
    before = conv.loaded.live()
    manifest = stage(conv, anchor=anchor)
    faulty_loader(conv, monkeypatch, losing(lost))
    error = conv.receiver.apply().error
    assert f"elements of '{name}', in the rehearsal it took" in error
    monkeypatch.undo()
    assert goes_back_and_on(conv, before, manifest, tmp_path / "fresh")


@pytest.mark.parametrize("anchor", [False, True])
def test_a_reload_that_raises_half_way_is_undone(
    conv: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anchor: bool
) -> None:
    before = conv.loaded.live()
    manifest = stage(conv, anchor=anchor)
    faulty_loader(conv, monkeypatch, breaking(1))
    assert "the disk is gone" in conv.receiver.apply().error
    monkeypatch.undo()
    assert goes_back_and_on(conv, before, manifest, tmp_path / "fresh")


def test_a_flipped_bit_in_what_vllm_reloads_is_found_and_rebuilt(conv: Rig, tmp_path: Path) -> None:
    bits(conv.loaded.model.get_parameter("model.layers.0.short_conv.in_proj.weight").data)[77] ^= 1
    assert audited(conv.receiver) == Audited("done", (IN,))
    assert comes_back(conv, tmp_path / "fresh")


def test_an_undo_that_vllm_reloads_into_something_else_is_seen(
    conv: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(conv)
    with monkeypatch.context() as patch:
        faulty_loader(conv, patch, breaking(1))
        assert conv.receiver.apply().error
    reload = conv.model.load

    def spoiling(tensors: Weights, reloaded: dict[str, set[str]]) -> dict[str, int]:
        copied = reload(tensors, reloaded)
        bits(conv.loaded.model.get_parameter(min(set().union(*reloaded.values()))).detach())[0] ^= 1
        return copied

    with monkeypatch.context() as patch:
        patch.setattr(conv.model, "load", spoiling)
        _, found = undone(conv.receiver)
    assert "are not what vLLM made of" in found.error
    assert comes_back(conv, tmp_path / "fresh")
