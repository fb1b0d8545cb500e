"""After 20 versions vLLM's model is what vLLM loads from the trainer's checkpoint; what does not fit is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.bits import bits, spec_of
from shared.changes import Change
from space_vllm.live import LiveTensor
from space_vllm.outcomes import Verified
from space_vllm.tracing import trace
from tests.space_vllm.driving import sync, undone
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
)

pytestmark = pytest.mark.slow  # imports vLLM

K, NORM, HEAD = "model.layers.0.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"
NOTHING, ALL, LAST = 7, 12, 20  # versions that change no element, and every one


@pytest.fixture(scope="package")
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
            rig.replace_all(version)
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


def test_of_a_fused_parameter_that_vllm_reloads_a_single_part_may_change(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    loaded = load(checkpoints["untied"], "bfloat16")
    model: Any = loaded.model
    model.model.layers[0].self_attn.attn.has_sink = True  # which makes all of this attention derived
    rig = Rig(loaded, tmp_path / "bucket")
    assert (rig.joined.error, rig.joined.places) == ("", {"in_place": len(rig.weights) - 6, "reloaded": 6})
    for version, name in enumerate([K, HEAD, "model.layers.0.self_attn.q_norm.weight"]):
        nudge(rig.weights, version, names=[name])
        rig.follow()
    assert rig.is_where_a_fresh_model_is(tmp_path / "fresh")


@pytest.mark.parametrize("kind", ["delta", "anchor"])
@pytest.mark.parametrize("name", ["untied", "conv"])
def test_an_undo_brings_back_every_bit_and_the_version_can_be_placed_again(
    make_rig: MakeRig, tmp_path: Path, name: str, kind: str
) -> None:
    rig = make_rig(name, "bfloat16")
    nudge(rig.weights, 1)
    one, before = rig.follow(), rig.loaded.live()
    nudge(rig.weights, 2) if kind == "delta" else rig.replace_all(2)
    two = rig.publish()
    assert two.kind == kind
    rig.stage(two)
    assert same(rig.loaded.live(), before), "staging leaves the live model alone"
    assert rig.receiver.apply().error == ""
    assert not same(rig.loaded.live(), before)
    placed, verified = undone(rig.receiver)
    assert (placed.error, verified) == ("", Verified(one.fingerprint))
    assert same(rig.loaded.live(), before)
    assert sync(rig.receiver, two, rig.bucket) == Verified(two.fingerprint)
    assert rig.is_where_a_fresh_model_is(tmp_path / "fresh")


@pytest.mark.parametrize("kind", ["delta", "anchor"])
def test_what_vllm_derives_outside_of_parameters_follows_forth_and_back(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    hook = UnquantizedLinearMethod.process_weights_after_loading

    def derive(method: Any, layer: torch.nn.Module) -> None:
        hook(method, layer)
        layer.__dict__["copy"] = layer.get_parameter("weight").detach().clone()

    monkeypatch.setattr(UnquantizedLinearMethod, "process_weights_after_loading", derive)
    rig = make_rig("conv", "bfloat16")
    layer: Any = rig.loaded.model.get_submodule("model.layers.0.short_conv.in_proj")
    old = layer.copy.clone()
    assert torch.equal(old, layer.weight)
    nudge(rig.weights, 2) if kind == "delta" else rig.replace_all(2)
    assert rig.stage(rig.publish()).error == ""
    assert rig.receiver.apply().error == ""
    assert torch.equal(layer.copy, layer.weight) and not torch.equal(layer.copy, old)
    assert undone(rig.receiver)[0].error == ""
    assert torch.equal(layer.copy, old) and torch.equal(layer.weight, old)


def without(name: str) -> Callable[[Weights], Weights]:
    return lambda weights: {key: tensor for key, tensor in weights.items() if key != name}


def with_one(name: str, tensor: torch.Tensor) -> Callable[[Weights], Weights]:
    return lambda weights: {**weights, name: tensor}


HEAD_OF_ITS_OWN = torch.ones(300, 64).to(torch.bfloat16)
MISFITS: dict[str, tuple[str, Callable[[Weights], Weights], str]] = {
    "a head where it is tied": (
        "tied",
        with_one(HEAD, HEAD_OF_ITS_OWN),
        r"refuses tensor 'lm_head.weight' \(300, 64\): .* is tied to 'model.embed_tokens.weight'",
    ),
    "no head where there is one": (
        "untied",
        without(HEAD),
        r"live parameter 'lm_head.weight' \(320, 64\) is not what is published: 19200 elements of it come from no",
    ),
    "a tensor too many": (
        "tied",
        with_one("model.extra.weight", torch.ones(4)),
        "refuses tensor 'model.extra.weight'",
    ),
    "a part of a fused parameter missing": (
        "tied",
        without(K),
        r"'model.layers.0.self_attn.qkv_proj.weight' \(256, 64\) is not what is published: 4096 elements of it",
    ),
    "another shape": (
        "tied",
        with_one(NORM, torch.ones(65).to(torch.bfloat16)),
        r"refuses tensor 'model.norm.weight' \(65,\)",
    ),
    "fewer rows": (
        "tied",
        with_one("model.embed_tokens.weight", torch.ones(299, 64).to(torch.bfloat16)),
        "model.embed_tokens.weight",
    ),
    "a dtype that is too wide": (
        "tied",
        with_one(NORM, torch.ones(64)),
        "'model.norm.weight' is published as F32, but",
    ),
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


def with_head(folder: Path, head: torch.Tensor) -> Path:
    """A checkpoint that says its embeddings are tied, and holds this head too."""
    save(qwen3(tied=True), folder)
    weights = {**load_file(folder / "model.safetensors"), HEAD: head}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_other_name_of_a_tied_tensor_in_the_checkpoint_is_passed_over(tmp_path: Path) -> None:
    embedding = qwen3(tied=True).get_input_embeddings().weight.detach().clone()
    rig = Rig(load(with_head(tmp_path / "model", embedding), "bfloat16"), tmp_path / "bucket")
    assert (rig.joined.error, rig.joined.places) == ("", {"in_place": len(rig.weights) - 1, "reloaded": 0})
    del rig.weights[HEAD]
    rig.out = rig.publisher("without")
    nudge(rig.weights, 1)
    rig.follow()


def test_a_head_of_its_own_in_a_checkpoint_that_says_it_is_tied_has_to_be_published(tmp_path: Path) -> None:
    rig = Rig(load(with_head(tmp_path / "model", HEAD_OF_ITS_OWN), "bfloat16"), tmp_path / "bucket")
    assert (rig.joined.error, rig.joined.places) == ("", {"in_place": len(rig.weights), "reloaded": 0})
    nudge(rig.weights, 1)
    rig.follow()
    assert (
        "'lm_head.weight' (320, 64) is not what is published"
        in rig.stage(rig.publish_anchor(without(HEAD)(rig.weights))).error
    )


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
    assert "vLLM does not make the same of 'model.layers.1.mlp.experts.0.down_proj.weight' and others" in joined.error
    assert "this architecture cannot follow updates here" in joined.error
