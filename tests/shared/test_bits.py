import pytest
import torch
from hypothesis import given

from shared.bits import DTYPES, bits, dtype_name, is_float, itemsize, parse_spec, spec_of, widen
from shared.errors import SyncError
from tests.shared.weights import property_test, tensors


def test_every_dtype_has_a_name_and_a_size() -> None:
    for name, dtype in DTYPES.items():
        assert dtype_name(dtype) == name
        assert itemsize(name) == torch.empty(0, dtype=dtype).element_size()


def test_a_dtype_outside_the_format_is_refused_by_name() -> None:
    with pytest.raises(SyncError, match="complex64"):
        dtype_name(torch.complex64)


@property_test
@given(tensors())
def test_bits_are_a_flat_view_that_writes_through(tensor: torch.Tensor) -> None:
    patterns = bits(tensor)
    assert patterns.shape == (tensor.numel(),)
    patterns.fill_(1)
    assert torch.equal(bits(tensor), torch.ones_like(patterns))


def test_bits_tell_apart_what_float_comparison_does_not() -> None:
    minus_zero, zero = torch.tensor([-0.0]), torch.tensor([0.0])
    assert torch.equal(minus_zero, zero)
    assert not torch.equal(bits(minus_zero), bits(zero))
    assert torch.equal(bits(torch.tensor([float("nan")])), bits(torch.tensor([float("nan")])))


def test_bits_of_a_parameter_need_no_gradient() -> None:
    assert not bits(torch.nn.Parameter(torch.ones(2, 3))).requires_grad


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_widened_bits_are_never_negative(dtype: torch.dtype) -> None:
    size = torch.empty(0, dtype=dtype).element_size()
    assert widen(torch.tensor([-1, 0, 1], dtype=dtype)).tolist() == [(1 << 8 * size) - 1, 0, 1]


def test_widened_bits_of_eight_bytes_stay_as_they_are() -> None:
    assert widen(torch.tensor([-1], dtype=torch.int64)).tolist() == [-1]


def test_a_stated_spec_is_that_of_the_tensor() -> None:
    spec = spec_of("a", torch.zeros(2, 0, 3, dtype=torch.bfloat16))
    assert parse_spec("a", "BF16", [2, 0, 3]) == spec
    assert parse_spec("a", "F32", []).numel == 1


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("F4", [1]),
        (1, [1]),
        (["F32"], [1]),
        ("F32", (1,)),
        ("F32", "ab"),
        ("F32", [-1]),
        ("F32", [1.0]),
        ("F32", [True]),
        ("F32", [1 << 60]),
        ("F32", [1 << 62, 1 << 62, 0]),
        ("F32", None),
    ],
)
def test_an_impossible_spec_is_a_value_error(dtype: object, shape: object) -> None:
    with pytest.raises(ValueError, match="shape"):
        parse_spec("a", dtype, shape)


def test_a_name_that_is_no_text_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="shape"):
        parse_spec(1, "F32", [1])


def test_only_floats_are_floats() -> None:
    assert {name for name in DTYPES if is_float(name)} == {"BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2"}


def test_a_name_that_is_too_long_is_refused_by_both_sides() -> None:
    name = "n" * 1001
    with pytest.raises(SyncError, match="a name of 1001 characters .'n{40}'...., at most 1000 fit"):
        spec_of(name, torch.zeros(1))
    with pytest.raises(ValueError, match="a name of 1001 characters"):
        parse_spec(name, "F32", [1])
    assert parse_spec(name[1:], "F32", [1]) == spec_of(name[1:], torch.zeros(1))
