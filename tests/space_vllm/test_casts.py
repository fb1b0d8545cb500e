"""What fits exactly comes back bit for bit; what does not is refused."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.bits import DTYPES, bits
from shared.errors import IntegrityError
from space_vllm.casts import holds, to_live, to_wire
from tests.shared.weights import from_patterns, patterns_of, property_test

PAIRS = [(wire, live) for wire, live in itertools.product(DTYPES, DTYPES.values()) if holds(live, wire)]
WIDER = [(wire, live) for wire, live in PAIRS if live != DTYPES[wire]]


def all_values(wire: str) -> torch.Tensor:
    """Every bit pattern that the dtype has; of one that is too long for that, a million of them."""
    size = DTYPES[wire].itemsize
    patterns = torch.arange(1 << min(8 * size, 20)) * (1 << max(0, 8 * size - 20))
    return patterns.to({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).view(DTYPES[wire])


@pytest.mark.parametrize("wire", DTYPES)
def test_each_dtype_holds_itself_and_no_narrower_one_holds_it(wire: str) -> None:
    assert holds(DTYPES[wire], wire)
    assert all(live.itemsize > DTYPES[wire].itemsize for name, live in PAIRS if name == wire and live != DTYPES[wire])


def test_what_people_serve_in_holds_what_it_can() -> None:
    assert holds(torch.float32, "BF16")
    assert holds(torch.float32, "F16")
    assert not holds(torch.bfloat16, "F32")
    assert not holds(torch.bfloat16, "F16")
    assert not holds(torch.float16, "BF16")
    assert not holds(torch.float32, "I32")
    assert not holds(torch.int64, "I32")


@pytest.mark.parametrize(("wire", "live"), WIDER, ids=lambda part: str(part).removeprefix("torch."))
def test_a_wider_dtype_keeps_every_number_and_both_zeros(wire: str, live: torch.dtype) -> None:
    values = all_values(wire)
    numbers = bits(values[~values.float().isnan()])
    assert torch.equal(to_wire(to_live(numbers, wire, live), wire), numbers)


@property_test
@given(st.sampled_from(list(DTYPES)), st.data())
def test_the_same_dtype_keeps_all_bits(wire: str, data: st.DataObject) -> None:
    patterns = bits(from_patterns(wire, (5,), data.draw(st.lists(patterns_of(wire), min_size=5, max_size=5))))
    assert torch.equal(to_wire(to_live(patterns, wire, DTYPES[wire]), wire), patterns)


def test_float32_keeps_every_bit_of_bfloat16_nan_payloads_too() -> None:
    patterns = bits(all_values("BF16"))
    assert torch.equal(to_wire(to_live(patterns, "BF16", torch.float32), "BF16"), patterns)


@pytest.mark.parametrize("wire", ["BF16", "F16", "F8_E4M3"])
@pytest.mark.parametrize("value", [0.1, 1e-30, 1 + 2**-20, -3.0000002])
def test_a_live_value_that_the_wire_does_not_have_is_refused(wire: str, value: float) -> None:
    with pytest.raises(IntegrityError, match=f"holds torch.float32 values that are no {wire} values"):
        to_wire(torch.tensor([1.0, value, 2.0]), wire)


def test_a_nan_that_the_wire_does_not_have_is_refused() -> None:
    with pytest.raises(IntegrityError, match="no BF16 values"):
        to_wire(torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32), "BF16")


def test_patterns_come_flat_whatever_the_shape_and_strides() -> None:
    values = torch.arange(12.0).view(3, 4).t()
    assert to_wire(values, "F32").tolist() == bits(values.contiguous()).tolist()
    assert to_wire(values, "BF16").view(torch.bfloat16).tolist() == values.contiguous().view(-1).tolist()
    assert to_wire(torch.empty(2, 0, 3), "BF16").shape == (0,)
    assert to_wire(torch.tensor(1.0), "BF16").shape == (1,)
