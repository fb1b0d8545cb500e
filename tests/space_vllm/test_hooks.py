"""What vLLM derives from weights after loading is known by its hooks; only a few of them are known to do no harm."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.space_vllm.vllm_models import glm4_moe, lfm2, load, qwen3, save

pytestmark = pytest.mark.slow  # imports vLLM


def derived(model: torch.nn.Module) -> set[str]:
    from space_vllm import hooks

    return hooks.derived(model)


def under(name: str, part: torch.nn.Module) -> torch.nn.Module:
    """A model with `part` at `name`, matrices beside it, and nothing else."""
    model = torch.nn.Module()
    parent = model
    for step in name.split(".")[:-1]:
        parent.add_module(step, torch.nn.Module())
        parent.add_module("beside", torch.nn.Linear(2, 2))
        parent = parent.get_submodule(step)
    parent.add_module(name.split(".")[-1], part)
    return model


class Attention(torch.nn.Module):
    """Named as vLLM's, with a hook, and none of vLLM's: it takes copies of what its parent holds."""

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None: ...


class SpecialAttention(Attention):
    """Inherits the hook."""


def with_method(method: Any, *shape: int) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.quant_method = method
    layer.weight = torch.nn.Parameter(torch.zeros(shape))
    return layer


def test_nothing_is_derived_in_a_plain_transformer(tmp_path: Path) -> None:
    model: Any = load(save(qwen3(tied=False), tmp_path / "model"), "bfloat16").model
    assert derived(model) == set()
    model.model.layers[1].self_attn.attn.has_sink = True
    assert derived(model) == {"model.layers.1.self_attn"}


def test_what_holds_experts_or_a_convolution_is_derived(tmp_path: Path) -> None:
    assert derived(load(save(glm4_moe(), tmp_path / "experts"), "bfloat16").model) == {"model.layers.1.mlp.experts"}
    assert derived(load(save(lfm2(), tmp_path / "conv"), "bfloat16").model) == {"model.layers.0.short_conv"}


@pytest.mark.parametrize("kind", [Attention, SpecialAttention])
def test_an_unknown_hook_makes_all_that_its_parent_holds_derived(kind: type[torch.nn.Module]) -> None:
    assert derived(under("layers.0.self_attn.mla", kind())) == {"layers.0.self_attn"}
    assert derived(under("attention", kind())) == {""}
    assert derived(under("layers.0.attention", kind())) == {"layers.0"}


def test_a_layer_of_vllm_that_inherits_from_a_harmless_one_is_not_on_the_list() -> None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    class Packing(UnquantizedLinearMethod):
        pass

    assert derived(under("layers.0.mlp.up", with_method(UnquantizedLinearMethod(), 2, 2))) == set()
    assert derived(under("layers.0.mlp.up", with_method(Packing(), 2, 2))) == {"layers.0.mlp"}


def test_a_method_without_a_hook_of_its_own_derives_nothing() -> None:
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    class Quiet(QuantizeMethodBase):
        def create_weights(self, layer: torch.nn.Module, *arguments: Any, **more: Any) -> None: ...

        def apply(self, layer: torch.nn.Module, *arguments: Any, **more: Any) -> torch.Tensor:
            return torch.zeros(1)

    class Loud(Quiet):
        def process_weights_after_loading(self, layer: torch.nn.Module) -> None: ...

    assert derived(under("mlp.up", with_method(Quiet(), 2, 2))) == set()
    assert derived(under("mlp.up", with_method(Loud(), 2, 2))) == {"mlp"}


def test_a_method_that_is_a_module_counts_for_the_layer_that_has_it() -> None:
    class Method(torch.nn.Module):
        def process_weights_after_loading(self, layer: torch.nn.Module) -> None: ...

    assert derived(under("layers.0.experts", with_method(Method(), 2, 2))) == {"layers.0"}


def test_a_kernel_of_more_dimensions_is_derived_under_a_method_that_leaves_matrices_alone() -> None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    assert derived(under("layers.0.conv.kernel", with_method(UnquantizedLinearMethod(), 4, 1, 3))) == {"layers.0.conv"}
    assert derived(under("layers.0.conv.kernel", torch.nn.Conv1d(4, 4, 3))) == set()


def test_of_nested_parts_only_the_outer_one_is_named() -> None:
    model = under("layers.0.self_attn.mla", Attention())
    model.get_submodule("layers.0").add_module("hooked", Attention())
    assert derived(model) == {"layers.0"}


def test_a_part_is_under_itself_and_its_parents_and_not_under_what_begins_alike() -> None:
    from space_vllm.hooks import is_under

    assert is_under("layers.1.mlp.weight", "layers.1.mlp")
    assert is_under("layers.1.mlp", "layers.1.mlp")
    assert is_under("anything", "")
    assert not is_under("layers.10.mlp", "layers.1")
    assert not is_under("layers.1", "layers.1.mlp")
