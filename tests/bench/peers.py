"""Other encodings of a step, tensor by tensor, as their public descriptions have them.

`int32 + bf16`: Hugging Face's blog post on delta weight sync. `u16 gaps + bf16`: the `gap_delta` of its last pull
request to TRL (u32 for a tensor with a gap that needs it). `byte planes + zstd`: the same with both in byte planes
under zstd. `dense XOR + zstd`: slime's and SkyRL's. `full anchor`: all weights. Only the bytes of their payload are
counted, without names or checksums.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zstandard

Array = np.ndarray


@dataclass(frozen=True)
class Sparse:
    """Encodes flat indices (int64 [n]) with the new bits (int16 [n]); `decode` takes n."""

    name: str
    encode: Callable[[Array, Array], bytes]
    decode: Callable[[bytes, int], tuple[Array, Array]]


@dataclass(frozen=True)
class Dense:
    """Encodes the bits (int16) of a whole tensor before and after; `decode` takes those before."""

    name: str
    encode: Callable[[Array, Array], bytes]
    decode: Callable[[bytes, Array], Array]


def compress(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(content)


def decompress(frame: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(frame)


def encode_indices(indices: Array, new: Array) -> bytes:
    return indices.astype(np.int32).tobytes() + new.tobytes()


def decode_indices(raw: bytes, count: int) -> tuple[Array, Array]:
    return np.frombuffer(raw, np.int32, count).astype(np.int64), np.frombuffer(raw, np.int16, count, 4 * count)


def gaps_of(indices: Array) -> Array:
    gaps = np.diff(indices, prepend=-1) - 1
    return gaps.astype(np.uint16 if gaps.max() < 1 << 16 else np.uint32)


def indices_of(gaps: Array) -> Array:
    return np.cumsum(gaps.astype(np.int64) + 1) - 1


def encode_gaps(indices: Array, new: Array) -> bytes:
    return gaps_of(indices).tobytes() + new.tobytes()


def decode_gaps(raw: bytes, count: int) -> tuple[Array, Array]:
    width = len(raw) // count - 2
    return indices_of(np.frombuffer(raw, f"<u{width}", count)), np.frombuffer(raw, np.int16, count, width * count)


def encode_planes(indices: Array, new: Array) -> bytes:
    gaps = gaps_of(indices)
    rows = [numbers.view(np.uint8).reshape(new.size, -1).T for numbers in (gaps, new)]
    return compress(np.concatenate(rows).tobytes())


def decode_planes(raw: bytes, count: int) -> tuple[Array, Array]:
    planes = np.frombuffer(decompress(raw), np.uint8).reshape(-1, count)
    gaps = np.ascontiguousarray(planes[:-2].T).view(f"<u{len(planes) - 2}").reshape(-1)
    return indices_of(gaps), np.ascontiguousarray(planes[-2:].T).view(np.int16).reshape(-1)


def encode_xor(old: Array, new: Array) -> bytes:
    return compress((old ^ new).tobytes())


def decode_xor(raw: bytes, old: Array) -> Array:
    return old ^ np.frombuffer(decompress(raw), np.int16)


def encode_whole(old: Array, new: Array) -> bytes:
    return new.tobytes()


def decode_whole(raw: bytes, old: Array) -> Array:
    return np.frombuffer(raw, np.int16)


SPARSE = (
    Sparse("int32 + bf16", encode_indices, decode_indices),
    Sparse("u16 gaps + bf16", encode_gaps, decode_gaps),
    Sparse("byte planes + zstd", encode_planes, decode_planes),
)
DENSE = (Dense("dense XOR + zstd", encode_xor, decode_xor), Dense("full anchor", encode_whole, decode_whole))
