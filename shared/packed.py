"""The packed encoding: gaps between changed indices and differences of bit patterns, each a stream over all tensors.

A gap is the number of unchanged elements since the last change. As in Golomb-Rice codes a tensor has a shift: that
many low bits of its gaps are as good as random and stored as they are; what is above takes one byte. A difference is
new minus old bits, in zigzag (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), since most are +1 or -1, and takes half a
byte. The highest byte and half byte mean that the number is in a stream of escapes. Every stream is one zstd frame,
whose entropy coding does the rest. This module knows nothing of files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shared.bits import itemsize
from shared.changes import Change, Patch, check_indices
from shared.errors import IntegrityError
from shared.frames import Bytes, fold, unfold
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
from shared.table import Table
from shared.types import TensorSpec

_LARGEST_BYTE = 255
_LARGEST_HALF = 15
_KEPT = 5  # bits of a common gap that stay above the shift: enough for the bits below it to be random
_SAMPLE = 4096


def encode(changes: Sequence[Change]) -> dict[str, bytes]:
    """The streams by name, compressed. A stream that would be empty is left out."""
    parts = [_part(change) for change in changes]
    streams = {
        "gaps": bytes(part.shift for part in parts) + _joined(part.gaps for part in parts).tobytes(),
        "remainders": _joined(part.remainders for part in parts).tobytes(),
        "gap_escapes": to_planes(_joined((part.gap_escapes for part in parts), np.uint64)),
        "differences": to_halves(_joined(part.differences for part in parts)),
    }
    for size in _sizes(change.spec for change in changes):
        escapes = (part.difference_escapes for part in parts if part.difference_escapes.itemsize == size)
        streams[_escapes(size)] = to_planes(_joined(escapes, UNSIGNED[size]))
    return {name: fold(stream) for name, stream in streams.items() if stream}


def decode(table: Table, streams: dict[str, bytes]) -> list[Patch]:
    """The patches of the tensors in `table`, each with its number of changed elements, from the streams of a file.

    Raises IntegrityError when the streams do not hold exactly what the table says.
    """
    known = {"gaps", "remainders", "gap_escapes", "differences", *map(_escapes, _sizes(spec for spec, _ in table))}
    if unknown := streams.keys() - known:
        raise IntegrityError(f"the table has no use for stream {min(unknown)!r}")
    indices, zigzags = _all_indices(table, streams), _all_zigzags(table, streams)
    return [
        Patch(spec, places, torch.from_numpy(_unzigzag(numbers)), relative=True)
        for (spec, _), places, numbers in zip(table, indices, zigzags, strict=True)
    ]


@dataclass(frozen=True)
class _Part:
    """What one tensor adds to the streams; escapes are as wide as they may get, the others bytes."""

    shift: int
    gaps: Bytes
    remainders: Bytes
    gap_escapes: np.ndarray
    differences: Bytes
    difference_escapes: np.ndarray


class _Run:
    """Numbers of all tensors, which are taken from the front, one tensor after the other."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = numbers
        self._taken = 0

    def take(self, count: int) -> np.ndarray:
        start, self._taken = self._taken, self._taken + count
        return self._numbers[start : self._taken]


def _part(change: Change) -> _Part:
    gaps = _gaps(change.indices.numpy().view(np.uint64))
    shift = _shift(change.spec, gaps)
    short, gap_escapes = _escaped(gaps >> np.uint64(shift), _LARGEST_BYTE)
    small, difference_escapes = _escaped(_zigzag(change), _LARGEST_HALF)
    return _Part(shift, short, to_bits(gaps, shift), gap_escapes, small, difference_escapes)


def _gaps(indices: np.ndarray) -> np.ndarray:
    gaps = indices.copy()
    gaps[1:] -= indices[:-1]
    gaps[1:] -= 1
    return gaps


def _shift(spec: TensorSpec, gaps: np.ndarray) -> int:
    """By the median of some gaps: a mean says little of changes that lie in clusters. At most what readers take."""
    some = np.sort(gaps[:: 1 + gaps.size // _SAMPLE])
    common = int(some[some.size // 2])
    return max(0, min(common.bit_length() - _KEPT, (spec.numel // gaps.size).bit_length() - 1))


def _escaped(numbers: np.ndarray, largest: int) -> tuple[Bytes, np.ndarray]:
    """Each number, or `largest` when it is not below that, and those numbers."""
    return np.minimum(numbers, numbers.dtype.type(largest)).astype(np.uint8), numbers[numbers >= largest]


def _unescaped(short: Bytes, largest: int, escapes: _Run, size: int) -> np.ndarray:
    numbers = short.astype(UNSIGNED[size])
    escaped = np.flatnonzero(short == largest)
    numbers[escaped] = escapes.take(escaped.size)
    return numbers


def _zigzag(change: Change) -> np.ndarray:
    difference = (change.new - change.old).numpy()  # wraps, and wraps back when added
    sign = difference >> (8 * difference.itemsize - 1)
    return ((difference << 1) ^ sign).view(UNSIGNED[difference.itemsize])


def _unzigzag(numbers: np.ndarray) -> np.ndarray:
    signed = np.dtype(f"i{numbers.itemsize}")
    half, sign = (numbers >> 1).view(signed), -(numbers & 1).view(signed)
    return np.asarray(half ^ sign)


def _all_indices(table: Table, streams: dict[str, bytes]) -> list[torch.Tensor]:
    total = sum(count for _, count in table)
    shifts, short = np.split(unfold(streams, "gaps", len(table) + total), [len(table)])
    rows = [(spec, count, _checked(spec, count, shift)) for (spec, count), shift in zip(table, shifts, strict=True)]
    nbytes = sum(bits_nbytes(count, shift) for _, count, shift in rows)
    remainders, gaps = _Run(unfold(streams, "remainders", nbytes)), _Run(short)
    escaped = int(np.count_nonzero(short == _LARGEST_BYTE))
    escapes = _Run(from_planes(unfold(streams, "gap_escapes", 8 * escaped), 8))
    return [
        _indices(
            spec,
            _unescaped(gaps.take(count), _LARGEST_BYTE, escapes, 8),
            from_bits(remainders.take(bits_nbytes(count, shift)), count, shift),
            shift,
        )
        for spec, count, shift in rows
    ]


def _checked(spec: TensorSpec, count: int, stated: np.uint8) -> int:
    """The shift, which bounds what the remainders unfold to."""
    shift = int(stated)
    if count << shift > spec.numel:
        raise IntegrityError(
            f"tensor {spec.name!r}: a shift of {shift} is too much for {count} changes of {spec.numel} elements"
        )
    return shift


def _indices(spec: TensorSpec, above: np.ndarray, below: np.ndarray, shift: int) -> torch.Tensor:
    longest = int(above.max()) << shift
    if longest >= spec.numel:  # so no gap wraps below; where their sum does, indices fall
        raise IntegrityError(f"tensor {spec.name!r}: a gap of {longest} leads out of its {spec.numel} elements")
    steps = (above << np.uint64(shift) | below).view(np.int64) + 1
    indices = torch.from_numpy(np.cumsum(steps) - 1)
    check_indices(spec, indices)
    return indices


def _all_zigzags(table: Table, streams: dict[str, bytes]) -> Iterator[np.ndarray]:
    total = sum(count for _, count in table)
    small = _Run(from_halves(unfold(streams, "differences", (total + 1) // 2), total))
    parts = [(small.take(count), itemsize(spec.dtype)) for spec, count in table]
    escapes = {}
    for wanted in _sizes(spec for spec, _ in table):
        escaped = sum(int(np.count_nonzero(part == _LARGEST_HALF)) for part, size in parts if size == wanted)
        escapes[wanted] = _Run(from_planes(unfold(streams, _escapes(wanted), wanted * escaped), wanted))
    return (_unescaped(part, _LARGEST_HALF, escapes[size], size) for part, size in parts)


def _escapes(size: int) -> str:
    return f"difference_escapes_{size}"


def _sizes(specs: Iterable[TensorSpec]) -> list[int]:
    return sorted({itemsize(spec.dtype) for spec in specs})


def _joined(parts: Iterable[np.ndarray], dtype: type = np.uint8) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts])
