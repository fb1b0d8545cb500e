"""The packed encoding: gaps between changed indices and differences of bit patterns, each a stream over all tensors.

A gap is the number of unchanged elements since the last change; it takes one byte, or 255 and a value in the escape
stream. A difference is new minus old bits, in zigzag (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), since most are +1 or
-1. Numbers wider than a byte go in byte planes, lowest first, and every stream is one zstd frame. This module knows
nothing of files.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import zstandard

from shared.bits import itemsize
from shared.changes import Change, Patch, check_indices
from shared.errors import IntegrityError
from shared.types import TensorSpec

_ESCAPE = 255
_LEVEL = 1
_LARGEST = np.uint64((1 << 64) - 1)
_NARROW, _WIDE = "escapes_4", "escapes_8"
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Table = Sequence[tuple[TensorSpec, int]]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


def encode(changes: Sequence[Change]) -> dict[str, bytes]:
    """The streams by name, compressed. A stream that would be empty is left out."""
    gaps = _concatenate([_gaps(change.indices.numpy()) for change in changes], np.int64)
    escapes = gaps[gaps >= _ESCAPE] - _ESCAPE
    streams: dict[str, bytes] = {"gaps": np.minimum(gaps, _ESCAPE).astype(np.uint8).tobytes()}
    name, width = (_WIDE, 8) if escapes.size and int(escapes.max()) >> 32 else (_NARROW, 4)
    streams[name] = _planes(escapes.astype(_UNSIGNED[width]))
    for size in _sizes(change.spec for change in changes):
        parts = [_zigzag(change) for change in changes if itemsize(change.spec.dtype) == size]
        streams[_differences(size)] = _planes(_concatenate(parts, _UNSIGNED[size]))
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    return {name: compressor.compress(stream) for name, stream in streams.items() if stream}


def decode(table: Table, streams: dict[str, bytes]) -> list[Patch]:
    """The patches of the tensors in `table`, each with its number of changed elements, from the streams of a file.

    Raises IntegrityError when the streams do not hold exactly what the table says.
    """
    offsets = dict.fromkeys(_sizes(spec for spec, _ in table), 0)
    if unknown := streams.keys() - {"gaps", _escapes(streams), *map(_differences, offsets)}:
        raise IntegrityError(f"the table has no use for stream {min(unknown)!r}")
    indices = _indices(table, streams)
    differences: dict[int, np.ndarray] = {}
    for size in offsets:
        elements = sum(count for spec, count in table if itemsize(spec.dtype) == size)
        differences[size] = _unzigzag(_from_planes(_inflate(streams, _differences(size), elements * size), size))
    patches = []
    for (spec, count), places in zip(table, indices, strict=True):
        check_indices(spec, places)
        size = itemsize(spec.dtype)
        part = differences[size][offsets[size] : offsets[size] + count]
        offsets[size] += count
        patches.append(Patch(spec, places, torch.from_numpy(part), relative=True))
    return patches


def _escapes(streams: dict[str, bytes]) -> str:
    return _WIDE if _WIDE in streams else _NARROW


def _differences(size: int) -> str:
    return f"differences_{size}"


def _sizes(specs: Iterable[TensorSpec]) -> list[int]:
    return sorted({itemsize(spec.dtype) for spec in specs})


def _concatenate(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _gaps(indices: Numbers) -> Numbers:
    return np.diff(indices, prepend=np.int64(-1)) - 1


def _zigzag(change: Change) -> np.ndarray:
    difference = (change.new - change.old).numpy()  # wraps, and wraps back when added
    sign = difference >> (8 * difference.itemsize - 1)
    return ((difference << 1) ^ sign).view(_UNSIGNED[difference.itemsize])


def _unzigzag(numbers: np.ndarray) -> np.ndarray:
    signed = np.dtype(f"i{numbers.itemsize}")
    half, sign = (numbers >> 1).view(signed), -(numbers & 1).view(signed)
    return np.asarray(half ^ sign)


def _planes(numbers: np.ndarray) -> bytes:
    return numbers.view(np.uint8).reshape(-1, numbers.itemsize).T.tobytes()


def _from_planes(planes: Bytes, size: int) -> np.ndarray:
    return np.ascontiguousarray(planes.reshape(size, -1).T).reshape(-1).view(_UNSIGNED[size])


def _inflate(streams: dict[str, bytes], name: str, nbytes: int) -> Bytes:
    frame = streams.get(name, b"")
    if bool(frame) != bool(nbytes):  # an empty frame could hide bytes after its end
        state = "there" if frame else "missing"
        raise IntegrityError(f"stream {name!r} is {state}, {nbytes} bytes are expected of it")
    if not frame:
        return np.empty(0, np.uint8)
    try:
        stated = zstandard.frame_content_size(frame)
        if stated != nbytes:
            holds = f"{stated} bytes" if stated >= 0 else "it does not say how many bytes"
            raise IntegrityError(f"stream {name!r} holds {holds}, {nbytes} are expected")
        plain = zstandard.ZstdDecompressor().decompress(frame, max_output_size=nbytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"stream {name!r} is not a zstd frame: {error}") from error
    return np.frombuffer(plain, np.uint8)


def _indices(table: Table, streams: dict[str, bytes]) -> list[torch.Tensor]:
    """Per tensor; sums of gaps may have wrapped, single gaps not."""
    counts = [count for _, count in table]
    gaps = _inflate(streams, "gaps", sum(counts)).astype(np.uint64)
    escaped = np.flatnonzero(gaps == _ESCAPE)
    name = _escapes(streams)
    width = 8 if name == _WIDE else 4
    escapes = _from_planes(_inflate(streams, name, escaped.size * width), width).astype(np.uint64)
    gaps[escaped] += np.minimum(escapes, _LARGEST - np.uint64(_ESCAPE))
    parts = np.split(gaps, np.cumsum(counts)[:-1]) if counts else []
    return [_places(spec, part) for (spec, _), part in zip(table, parts, strict=True)]


def _places(spec: TensorSpec, gaps: np.ndarray) -> torch.Tensor:
    longest = int(gaps.max())
    if longest >= spec.numel:
        raise IntegrityError(f"tensor {spec.name!r}: a gap of {longest} leads out of its {spec.numel} elements")
    return torch.from_numpy(np.cumsum(gaps.astype(np.int64) + 1) - 1)
