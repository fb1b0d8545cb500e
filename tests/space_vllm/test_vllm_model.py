"""Twenty versions on, vLLM's model is what vLLM would load from the trainer's checkpoint; what does not fit is refused."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shared.bits import bits, spec_of
from shared.changes import Change
from space_vllm.live import LiveTensor
from space_vllm.outcomes import Audited, Verified
from space_vllm.tracing import trace
from tests.space_vllm.driving import audited, sync, undone
from tests.space_vllm.vllm_models import (
    Rig,
    Weights,
    glm4_moe,
    lfm2,
    load,
    nudge,
    qwen3,
    same,
    save,
    scramble,
)

pytestmark = pytest.mark.slow  # imports vLLM

NOTHING, ALL, LAST = 7, 12, 20  # versions that change no element, and every one


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    models = {"tied": qwen3(tied=True), "untied": qwen3(tied=False), "conv": lfm2(), "experts": glm4_moe()}
    return {name: save(model, tmp_path_factory.mktemp(name) / "model") for name, model in models.items()}


MakeRig = Callable[[str, str], Rig]


@pytest.fixture
def make_rig(checkpoints: dict[str, Path], tmp_path: Path) -> MakeRig:
    return lambda name, dtype: Rig(load(checkpoints[name], dtype), tmp_path / "bucket")


def follow_to_the_last(rig: Rig) -> None:
    """Only every second tensor is trained, except in the version that changes all."""
    trained = list(rig.weights)[1::2]
    for version in range(1, LAST + 1):
        if version == ALL:
            scramble(rig.weights, version)
        elif version != NOTHING:
            nudge(rig.weights, version, names=trained)
        manifest = rig.follow()
        assert (manifest.version, manifest.kind) == (version, "anchor" if version == ALL else "delta")
        assert (manifest.changed == 0) == (version == NOTHING)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_twenty_versions_in_place_lead_to_what_a_fresh_model_is(
    make_rig: MakeRig, tmp_path: Path, head: str, dtype: str
) -> None:
    rig = make_rig(head, dtype)
    assert (rig.joined.error, rig.joined.places) == ("", {"in_place": len(rig.weights), "reloaded": 0})
    assert ("lm_head.weight" in rig.weights) == (head == "untied")
    follow_to_the_last(rig)
    assert rig.is_where_a_fresh_model_is(tmp_path / "fresh")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_twenty_versions_of_which_vllm_reloads_a_part_lead_to_what_a_fresh_model_is(
    make_rig: MakeRig, tmp_path: Path, dtype: str
) -> None:
    rig = make_rig("conv", dtype)
    assert (rig.joined.error, rig.joined.places) == ("", {"in_place": len(rig.weights) - 3, "reloaded": 3})
    follow_to_the_last(rig)
    assert rig.is_where_a_fresh_model_is(tmp_path / "fresh")


@pytest.mark.parametrize(("name", "change"), [("untied", nudge), ("untied", scramble), ("conv", nudge), ("conv", scramble)])
def test_an_undo_brings_back_every_bit_and_the_version_can_be_placed_again(
    make_rig: MakeRig, tmp_path: Path, name: str, change: Callable[[Weights, int], None]
) -> None:
    rig = make_rig(name, "bfloat16")
    nudge(rig.weights, 1)
    one, before = rig.follow(), rig.loaded.live()
    change(rig.weights, 2)
    two = rig.publish()
    rig.stage(two)
    assert same(rig.loaded.live(), before), "staging leaves the live model alone"
    assert rig.receiver.apply().error == ""
    assert not same(rig.loaded.live(), before)
    placed, verified = undone(rig.receiver)
    assert (placed.error, verified) == ("", Verified(one.fingerprint))
    assert same(rig.loaded.live(), before)
    assert sync(rig.receiver, two, rig.bucket) == Verified(two.fingerprint)
    assert rig.is_where_a_fresh_model_is(tmp_path / "fresh")


def without(name: str) -> Callable[[Weights], Weights]:
    return lambda weights: {key: tensor for key, tensor in weights.items() if key != name}


def with_one(name: str, tensor: torch.Tensor) -> Callable[[Weights], Weights]:
    return lambda weights: {**weights, name: tensor}


K, NORM, HEAD = "model.layers.0.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"
MISFITS: dict[str, tuple[str, Callable[[Weights], Weights], str]] = {
    "a head where it is tied": (
        "tied",
        with_one(HEAD, torch.ones(300, 64).to(torch.bfloat16)),
        r"vLLM takes nothing from 1 of the tensors, such as 'lm_head.weight': is it tied here",
    ),
    "no head where there is one": (
        "untied",
        without(HEAD),
        r"live parameter 'lm_head.weight' \(320, 64\) is not what is published: 19200 elements of it come from no tensor",
    ),
    "a tensor too many": ("tied", with_one("model.extra.weight", torch.ones(4)), "refuses tensor 'model.extra.weight'"),
    "a part of a fused parameter missing": (
        "tied",
        without(K),
        r"'model.layers.0.self_attn.qkv_proj.weight' \(256, 64\) is not what is published: 4096 elements of it",
    ),
    "another shape": ("tied", with_one(NORM, torch.ones(65).to(torch.bfloat16)), r"refuses tensor 'model.norm.weight' \(65,\)"),
    "fewer rows": (
        "tied",
        with_one("model.embed_tokens.weight", torch.ones(299, 64).to(torch.bfloat16)),
        "model.embed_tokens.weight",
    ),
    "a dtype that is too wide": ("tied", with_one(NORM, torch.ones(64)), "'model.norm.weight' is published as F32, but"),
}


@pytest.mark.parametrize(("name", "change", "sentence"), MISFITS.values(), ids=MISFITS.keys())
def test_what_does_not_fit_is_refused_at_staging(
    make_rig: MakeRig, name: str, change: Callable[[Weights], Weights], sentence: str
) -> None:
    rig = make_rig(name, "bfloat16")
    before = rig.loaded.live()
    refused = rig.stage(rig.publish_anchor(change(rig.weights)))
    assert (refused.state, refused.error_kind) == ("failed", "SyncError")
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(refused.error)
    assert same(rig.loaded.live(), before)
    nudge(rig.weights, 1)
    rig.follow()


def test_a_router_in_float32_is_followed_in_place_inside_a_bfloat16_model(checkpoints: dict[str, Path]) -> None:
    loaded = load(checkpoints["experts"], "bfloat16")
    name, gate = "model.layers.1.mlp.gate.weight", loaded.model.get_parameter("model.layers.1.mlp.gate.weight")
    wire = loaded.checkpoint()[name]
    assert (wire.dtype, gate.dtype) == (torch.bfloat16, torch.float32)
    load_weights: Any = loaded.model.load_weights
    found = trace(load_weights, name, wire)
    live = LiveTensor(spec_of(name, wire), tuple(found.regions))
    assert found.complete and torch.equal(live.whole(), bits(wire))
    indices = torch.tensor([0, 5, wire.numel() - 1])
    live.write(Change(live.spec, indices, bits(wire)[indices], bits(wire)[indices] + 1))
    bits(wire)[indices] += 1
    assert torch.equal(gate.detach(), wire.float())


def test_experts_that_vllm_reloads_into_something_else_are_refused_at_join(make_rig: MakeRig) -> None:
    joined = make_rig("experts", "bfloat16").joined
    assert (joined.state, joined.error_kind) == ("failed", "SyncError")
    assert "vLLM does not make the same of 'model.layers.1.mlp.experts.0.gate_proj.weight' and others" in joined.error
    assert "this architecture cannot follow updates here" in joined.error
