"""How unsigned numbers lie in bytes: in byte planes, two to a byte, or in as few bits as they need.

Knows neither what they count nor where the bytes go; nothing here can fail, callers bring as many bytes as it takes.
"""

import numpy as np

from shared.frames import Bytes

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # by bytes per number


def to_planes(numbers: np.ndarray) -> bytes:
    """The lowest byte of all numbers, then the second of all, up to the highest."""
    return numbers.view(np.uint8).reshape(-1, numbers.itemsize).T.tobytes()


def from_planes(planes: Bytes, size: int) -> np.ndarray:
    """Numbers of `size` bytes each."""
    return np.ascontiguousarray(planes.reshape(size, -1).T).reshape(-1).view(UNSIGNED[size])


def to_halves(numbers: Bytes) -> bytes:
    """Numbers below 16, two to a byte, the first in the lower half; an odd one at the end is followed by 0."""
    even = np.append(numbers, np.zeros(numbers.size % 2, np.uint8))
    return bytes(even[0::2] | even[1::2] << 4)


def from_halves(halves: Bytes, count: int) -> Bytes:
    numbers = np.empty(2 * halves.size, np.uint8)
    np.bitwise_and(halves, 15, out=numbers[0::2])
    np.right_shift(halves, 4, out=numbers[1::2])
    return numbers[:count]


def to_bits(numbers: np.ndarray, width: int) -> Bytes:
    """The `width` lowest bits of each, in bit planes: bit 0 of all numbers, then bit 1 of all; the last byte is filled
    up with 0. Bits fill a byte from its lowest up.
    """
    planes = np.empty((width, numbers.size), np.uint8)
    for place in range(width):
        np.copyto(planes[place], numbers >> place & 1, casting="unsafe")
    return np.packbits(planes, bitorder="little")


def from_bits(packed: Bytes, count: int, width: int) -> np.ndarray:
    """`count` numbers below 2**width, 8 bytes each."""
    planes = np.unpackbits(packed, count=count * width, bitorder="little").reshape(width, count)
    numbers = np.zeros(count, np.uint64)
    for place in range(width):
        numbers |= planes[place].astype(np.uint64) << np.uint64(place)
    return numbers


def bits_nbytes(count: int, width: int) -> int:
    """Bytes that `count` numbers of `width` bits take."""
    return -(-count * width // 8)
