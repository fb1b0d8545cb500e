import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.numerals import (
    UNSIGNED,
    bits_nbytes,
    from_bits,
    from_halves,
    from_planes,
    to_bits,
    to_halves,
    to_planes,
)
from tests.shared.weights import property_test


def as_bytes(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


@pytest.mark.parametrize("size", UNSIGNED)
@property_test
@given(data=st.data())
def test_numbers_survive_byte_planes(size: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, (1 << 8 * size) - 1), max_size=20))
    planes = to_planes(np.array(numbers, UNSIGNED[size]))
    assert len(planes) == size * len(numbers)
    assert from_planes(as_bytes(planes), size).tolist() == numbers


@property_test
@given(st.lists(st.integers(0, 15), max_size=20))
def test_numbers_survive_halves(numbers: list[int]) -> None:
    halves = to_halves(np.array(numbers, np.uint8))
    assert len(halves) == (len(numbers) + 1) // 2
    assert from_halves(as_bytes(halves), len(numbers)).tolist() == numbers


@property_test
@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=20), st.integers(0, 63))
def test_the_lowest_bits_of_numbers_survive(numbers: list[int], width: int) -> None:
    packed = to_bits(np.array(numbers, np.uint64), width)
    assert packed.size == bits_nbytes(len(numbers), width)
    assert from_bits(packed, len(numbers), width).tolist() == [number & ((1 << width) - 1) for number in numbers]


def test_the_lowest_comes_first() -> None:
    assert to_planes(np.array([0x0102, 0x0304], np.uint16)).hex() == "02040103"
    assert to_halves(np.array([1, 2, 3], np.uint8)).hex() == "2103"
    assert to_bits(np.array([0b01, 0b10, 0b11, 0b10], np.uint64), 2).tobytes() == bytes([0b1110_0101])
