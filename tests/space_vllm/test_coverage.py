"""A set of traces is believed when it reaches each live element once, the padding of a vocabulary excepted."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from shared.bits import spec_of
from shared.errors import SyncError
from space_vllm.tracing import Trace, trace
from tests.space_vllm.vllm_models import VOCABULARY, Loaded, load, qwen3, save

pytestmark = pytest.mark.slow  # imports vLLM

Place = Callable[[Any, torch.Tensor], object]


class Plain(torch.nn.Module):
    """Parameters of given shapes; `places` says where the tensor of each name goes."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], places: dict[str, Place], dtype: torch.dtype) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False))
        self._places = places

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for name, tensor in weights:
            self._places[name](self, tensor)
        return set()


FUSED: dict[str, Place] = {
    "q": lambda model, tensor: model.qkv[:4].copy_(tensor),
    "k": lambda model, tensor: model.qkv[4:6].copy_(tensor),
    "norm": lambda model, tensor: model.norm.copy_(tensor),
}
SHAPES = {"q": (4, 3), "k": (2, 3), "norm": (3,)}


def fused(dtype: torch.dtype = torch.float32, **places: Place) -> Plain:
    return Plain({"qkv": (6, 3), "norm": (3,)}, {**FUSED, **places}, dtype)


def traces_of(
    model: Plain, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32
) -> dict[str, Trace]:
    return {name: trace(model.load_weights, name, torch.ones(shape, dtype=dtype)) for name, shape in shapes.items()}


def check_reached(model: torch.nn.Module, traces: dict[str, Trace]) -> None:
    from space_vllm import coverage

    coverage.check_reached(model, traces)


def test_fused_parts_account_for_the_whole_model() -> None:
    model = fused()
    check_reached(model, traces_of(model, SHAPES))


def test_a_missing_tensor_is_told_by_the_parameter_its_count_and_its_other_parts() -> None:
    model = fused()
    sentence = r"live parameter 'qkv' \(6, 3\) is not what is published: 6 elements of it come from no tensor"
    with pytest.raises(SyncError, match=sentence + r" \(it is made of q\); publish every parameter"):
        check_reached(model, traces_of(model, {"q": (4, 3), "norm": (3,)}))
    with pytest.raises(
        SyncError, match=r"'norm' \(3,\) .*: 3 elements of it come from no tensor \(it is made of none"
    ):
        check_reached(model, traces_of(model, {"q": (4, 3), "k": (2, 3)}))


def test_one_missing_element_is_enough() -> None:
    model = fused(q=lambda model, tensor: model.qkv.view(-1)[:11].copy_(tensor.view(-1)[:11]))
    with pytest.raises(SyncError, match="1 elements of it come from no tensor .it is made of k, q."):
        check_reached(model, traces_of(model, SHAPES))


def test_an_element_that_two_tensors_reach_is_refused() -> None:
    model = fused(
        k=lambda model, tensor: model.qkv[3:5].copy_(tensor),
        last=lambda model, tensor: model.qkv[5].copy_(tensor),
    )
    with pytest.raises(SyncError, match="'qkv' .* 3 come from more than one tensor .it is made of k, last, q."):
        check_reached(model, traces_of(model, {**SHAPES, "last": (3,)}))


def test_a_tensor_that_nothing_is_taken_from_is_refused_by_name() -> None:
    model = fused(head=lambda model, tensor: None)
    with pytest.raises(SyncError, match="vLLM takes nothing from 1 of the tensors, such as 'head': is it tied here"):
        check_reached(model, traces_of(model, {**SHAPES, "head": (6, 3)}))


def test_a_parameter_that_a_loader_computes_is_taken_on_its_word() -> None:
    model = fused(norm=lambda model, tensor: model.norm.copy_(tensor + 1))
    found = traces_of(model, SHAPES)
    with pytest.raises(SyncError, match="'norm'"):
        check_reached(model, found)
    found["norm"].loaded = {"norm"}
    check_reached(model, found)


def test_a_parameter_of_two_names_is_one_place_and_two_tensors_for_it_are_one_too_many() -> None:
    model = fused(head=lambda model, tensor: model.head.copy_(tensor))
    model.head = model.qkv
    check_reached(model, traces_of(model, SHAPES))
    with pytest.raises(SyncError, match="'qkv' .* 18 come from more than one tensor .it is made of head, k, q."):
        check_reached(model, traces_of(model, {**SHAPES, "head": (6, 3)}))


def test_parameters_without_elements_and_without_dimensions_are_reached_like_others() -> None:
    places: dict[str, Place] = {
        "none": lambda model, tensor: model.none.copy_(tensor),
        "other": lambda model, tensor: model.other.copy_(tensor),
        "scale": lambda model, tensor: model.scale.copy_(tensor),
    }
    shapes = {"none": (2, 0, 3), "other": (0,), "scale": ()}
    model = Plain(shapes, places, torch.float32)
    check_reached(model, traces_of(model, shapes))
    with pytest.raises(SyncError, match=r"'scale' \(\) is not what is published: 1 elements"):
        check_reached(model, traces_of(model, {"none": (2, 0, 3), "other": (0,)}))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A model whose embedding has rows of padding."""
    return load(save(qwen3(tied=True), tmp_path_factory.mktemp("vocabulary") / "model"), "bfloat16")


def test_rows_that_round_up_a_vocabulary_need_no_tensor_and_no_other_rows_are_such(
    vocabulary: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from space_vllm.coverage import padding

    model: Any = vocabulary.model
    found = {name: trace(model.load_weights, name, tensor) for name, tensor in vocabulary.checkpoint().items()}
    check_reached(model, found)
    ((name, rows),) = padding(model)
    assert (name, rows.shape) == ("model.embed_tokens.weight", (20, 64))
    assert rows.data_ptr() == model.model.embed_tokens.weight[VOCABULARY].data_ptr()
    monkeypatch.setattr(model.model.embed_tokens, "org_vocab_size", VOCABULARY + 1)
    with pytest.raises(SyncError, match=r"'model.embed_tokens.weight' \(320, 64\) .* 64 elements of it come from no"):
        check_reached(model, found)


def test_only_a_vocabulary_has_padding() -> None:
    from space_vllm.coverage import padding

    assert list(padding(Plain({"a": (320, 4), "b": (), "c": (0,)}, {}, torch.float32))) == []


@pytest.mark.parametrize(
    ("wire", "live", "fits"),
    [
        (torch.bfloat16, torch.bfloat16, True),
        (torch.bfloat16, torch.float32, True),
        (torch.float16, torch.float32, True),
        (torch.float32, torch.bfloat16, False),
        (torch.float16, torch.bfloat16, False),
        (torch.bfloat16, torch.float16, False),
    ],
)
def test_a_live_dtype_has_to_hold_what_is_published(wire: torch.dtype, live: torch.dtype, fits: bool) -> None:
    from space_vllm.coverage import check_dtypes

    model = fused(live)
    found = traces_of(model, SHAPES, wire)
    specs = {name: spec_of(name, torch.ones(shape, dtype=wire)) for name, shape in SHAPES.items()}
    if fits:
        check_dtypes(specs, found)
        return
    sentence = f"tensor 'q' is published as {specs['q'].dtype}, but the live parameter is {live} and cannot hold every"
    with pytest.raises(SyncError, match=sentence):
        check_dtypes(specs, found)


def is_whole(shape: tuple[int, ...], write: Callable[[torch.Tensor, torch.Tensor], object]) -> bool:
    """Whether a tensor of this shape can be read back from where `write` puts it in a memory of 100 zeros."""
    from space_vllm import coverage

    memory, wire = torch.zeros(100), torch.ones(shape)

    def load(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for _, tensor in weights:
            write(memory, tensor)
        return set()

    return coverage.is_whole(spec_of("t", wire), trace(load, "t", wire))


def test_a_tensor_is_whole_when_each_of_its_elements_goes_to_one_place() -> None:
    assert is_whole((6, 3), lambda memory, wire: memory[2:20].copy_(wire.view(-1)))
    assert is_whole((6, 3), lambda memory, wire: memory[:18].view(3, 6).copy_(wire.t()))
    assert is_whole((4,), lambda memory, wire: (memory[:1].copy_(wire[:1]), memory[50:53].copy_(wire[1:])))
    assert is_whole((), lambda memory, wire: memory[7].copy_(wire))
    assert is_whole((2, 0, 3), lambda memory, wire: memory[:0].copy_(wire.view(-1)))


def test_a_tensor_is_not_whole_when_an_element_is_missing_doubled_or_computed() -> None:
    assert not is_whole((6, 3), lambda memory, wire: memory[:17].copy_(wire.view(-1)[:17]))
    assert not is_whole((4,), lambda memory, wire: (memory[:4].copy_(wire), memory[50:54].copy_(wire)))
    assert not is_whole((4,), lambda memory, wire: (memory[:2].copy_(wire[:2]), memory[2:4].copy_(wire[:2])))
    assert not is_whole((4,), lambda memory, wire: memory[:4].copy_(wire + 1))
    assert not is_whole((4,), lambda memory, wire: memory[:4].copy_(wire[0])), "as many places as elements"
    assert not is_whole((2, 2), lambda memory, wire: memory[:4].view(2, 2).copy_(wire[0]))
    assert not is_whole((4,), lambda memory, wire: None)
