from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.bits import bits, is_float, spec_of
from shared.errors import SyncError
from tests.shared.weights import (
    Weights,
    changes_between,
    copies,
    from_patterns,
    model,
    property_test,
    same,
    tensors,
    weights_and_change,
)
from trainer_box import detect
from trainer_box.detect import copy_all, find_changes


def finite(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64).isfinite()


@property_test
@given(weights_and_change(), st.sampled_from([1, 3, detect.PIECE]))
def test_changes_are_exactly_the_elements_whose_bits_differ_in_whatever_pieces_they_are_compared(
    pair: tuple[Weights, Weights], elements: int
) -> None:
    old, new = pair
    broken = any(
        is_float(spec_of(name, tensor).dtype) and bool((~finite(tensor) & finite(old[name])).any())
        for name, tensor in new.items()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detect, "PIECE", elements)
        if broken:
            with pytest.raises(SyncError, match="NaN or infinite"):
                find_changes(new.items(), old, None)
            return
        found = find_changes(new.items(), old, None)
    expected = [change for change in changes_between(old, new) if change.count]
    assert [change.spec for change in found] == [change.spec for change in expected]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.indices, other.indices)
        assert torch.equal(one.old, other.old)
        assert torch.equal(one.new, other.new)


def test_a_tensor_is_done_with_before_the_next_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "PIECE", 4)
    held = {f"w{number}": torch.full((1000,), float(number)) for number in range(20)}
    gathered = torch.empty(1000)

    def gathered_one_by_one() -> Iterator[tuple[str, torch.Tensor]]:
        for number, name in enumerate(held):
            gathered.fill_(number)
            yield name, gathered
            gathered.fill_(-1)

    assert find_changes(gathered_one_by_one(), held, None) == []
    assert same(copy_all(gathered_one_by_one(), None), held)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (torch.empty(2, device="meta"), "'a' is on no device"),
        (torch.zeros(2, 2).to_sparse(), "'a' is of layout torch.sparse_coo"),
    ],
)
def test_what_has_no_elements_to_compare_is_refused(tensor: torch.Tensor, says: str) -> None:
    with pytest.raises(SyncError, match=says):
        copy_all([("a", tensor)], None)
    with pytest.raises(SyncError, match=says):
        find_changes([("a", tensor)], {"a": torch.zeros(tensor.shape)}, None)


@pytest.mark.parametrize(("before", "after"), [(0.0, -0.0), (1.0, -1.0), (1.0, 4.0), (1.0, 16.0), (-0.0, 0.0)])
def test_changes_that_comparisons_or_low_bytes_miss_are_found(before: float, after: float) -> None:
    old = {"a": torch.full((3,), before, dtype=torch.bfloat16)}
    new = copies(old)
    new["a"][1] = after
    assert find_changes(new.items(), old, None)[0].indices.tolist() == [1]


def test_a_nan_that_was_there_before_is_no_change_and_its_other_payload_is() -> None:
    old = {"a": from_patterns("BF16", (2,), [0x7FC0, 0x7F80])}
    assert find_changes(copies(old).items(), old, None) == []
    new = {"a": from_patterns("BF16", (2,), [0x7FC1, 0x7F80])}
    assert find_changes(new.items(), old, None)[0].indices.tolist() == [0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64", "F8_E5M2"])
def test_a_new_nan_or_infinity_is_refused_with_its_place(value: float, dtype: str) -> None:
    old = {"a": torch.zeros(2, 3).to(from_patterns(dtype, (0,), []).dtype)}
    new = {"a": old["a"].clone().to(torch.float64)}
    new["a"][1, 2] = value
    with pytest.raises(SyncError, match="1 elements of 'a' became NaN or infinite, the first at flat index 5"):
        find_changes([("a", new["a"].to(old["a"].dtype))], old, None)


def test_a_cast_that_overflows_is_refused() -> None:
    old = {"a": torch.zeros(2, dtype=torch.float16)}
    with pytest.raises(SyncError, match="became NaN or infinite"):
        find_changes([("a", torch.tensor([0.0, 1e6]))], old, torch.float16)


def test_only_floats_are_cast() -> None:
    given_tensors = {"a": torch.tensor([1.0, 1.0 + 2**-20]), "n": torch.tensor([1 << 40]), "b": torch.tensor([True])}
    copied = copy_all(given_tensors.items(), torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in copied.items()} == {
        "a": torch.bfloat16,
        "n": torch.int64,
        "b": torch.bool,
    }
    assert find_changes(given_tensors.items(), copied, torch.bfloat16) == []


def test_without_a_serving_dtype_tensors_keep_their_own() -> None:
    assert same(copy_all(model().items(), None), model())


@property_test
@given(tensors())
def test_copies_are_contiguous_and_independent(tensor: torch.Tensor) -> None:
    turned = tensor.t() if tensor.dim() == 2 else tensor
    copied = copy_all([("a", turned)], None)["a"]
    assert copied.is_contiguous()
    assert same({"a": copied}, {"a": turned.contiguous()})
    before = bits(copied).clone()
    bits(tensor).fill_(1)
    assert torch.equal(bits(copied), before)


def test_expanded_tensors_and_parameters_are_copied() -> None:
    parameter = torch.nn.Parameter(torch.ones(1, 3).expand(2, 3).clone())
    copied = copy_all([("a", torch.ones(1, 3).expand(2, 3)), ("b", parameter)], None)
    assert torch.equal(copied["a"], torch.ones(2, 3))
    assert not copied["b"].requires_grad


def test_tied_tensors_are_copied_under_both_names() -> None:
    tied = torch.ones(3)
    copied = copy_all([("a", tied), ("b", tied)], None)
    copied["a"][0] = 5
    assert copied["b"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ([("a", torch.ones(3))], "1 tensors of the run were not given, such as 'b'"),
        ([], "2 tensors of the run were not given"),
        ([("a", torch.ones(3)), ("b", torch.ones(2)), ("c", torch.ones(1))], "tensor 'c' is new"),
        ([("_orig_mod.a", torch.ones(3)), ("b", torch.ones(2))], "tensor '_orig_mod.a' is new"),
        ([("a", torch.ones(3)), ("a", torch.ones(3)), ("b", torch.ones(2))], "tensor 'a' was given twice"),
        ([("a", torch.ones(3)), ("b", torch.ones(2, 1))], r"tensor 'b' is F32 \(2, 1\), the run has F32 \(2,\)"),
        ([("a", torch.ones(3)), ("b", torch.ones(2).half())], "tensor 'b' is F16"),
        ([("a", torch.ones(3)), ("b", torch.ones(2, dtype=torch.complex64))], "complex64"),
    ],
)
def test_tensors_that_are_not_those_of_the_run_are_refused_by_name(
    named: list[tuple[str, torch.Tensor]], reason: str
) -> None:
    held = {"a": torch.ones(3), "b": torch.ones(2)}
    with pytest.raises(SyncError, match=reason):
        find_changes(named, held, None)


def test_a_first_set_without_tensors_or_with_a_name_twice_is_refused() -> None:
    with pytest.raises(SyncError, match="no tensors"):
        copy_all([], None)
    with pytest.raises(SyncError, match="'a' was given twice"):
        copy_all([("a", torch.ones(1)), ("a", torch.ones(1))], None)
    with pytest.raises(SyncError, match="complex64"):
        copy_all([("a", torch.ones(1, dtype=torch.complex64))], None)
