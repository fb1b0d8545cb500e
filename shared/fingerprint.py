"""The fingerprint of a set of weights: 64 bits that say whether two sets are the same, bit for bit.

It is the sum, modulo 2**64, over all tensors of mix(seed) and over all their elements of mix(mix(seed + i) ^ b), where
`seed` is xxh3_64 of the tensor's JSON `[name,dtype,shape]`, `i` the flat index and `b` the zero-extended bit pattern.
A sum does not depend on order or layout, and a change of n elements updates it in O(n). It finds accidents, not
attackers. `mix` is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014, constants of variant 13 by Stafford). int64 arithmetic in torch wraps, which is what modulo 2**64 needs.
Counting runs on the device of the tensors.
"""

import json
from collections.abc import Mapping

import torch
import xxhash

from shared.bits import bits, spec_of, widen
from shared.types import TensorSpec

_PART = 1 << 18  # elements counted at a time: 2 MiB of int64, which stay in a CPU's cache
_PART_ON_GPU = 1 << 21  # a GPU wants fewer and longer steps
_WORD = 1 << 64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - _WORD, 0x94D049BB133111EB - _WORD)


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> int:
    """The fingerprint of whole weights, counted element by element in bounded memory."""
    return sum(tensor(spec_of(name, values), bits(values)) for name, values in tensors.items()) % _WORD


def tensor(spec: TensorSpec, patterns: torch.Tensor) -> int:
    """The terms of one whole tensor, given all its bit patterns, flat, as integers of the dtype's size."""
    total, start = header(spec), 0
    for part in patterns.split(_length(patterns)):
        places = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
        total += _sum(spec, places, part)
        start += part.numel()
    return total % _WORD


def header(spec: TensorSpec) -> int:
    """The one term that a tensor has besides its elements."""
    return int(_mix(torch.tensor([_seed(spec)], dtype=torch.int64)).item()) % _WORD


def elements(spec: TensorSpec, indices: torch.Tensor, patterns: torch.Tensor) -> int:
    """The terms of the elements at the flat `indices` (int64 [n]) with these bit patterns ([n])."""
    length = _length(indices)
    parts = zip(indices.split(length), patterns.split(length), strict=True)
    return sum(_sum(spec, places, part) for places, part in parts) % _WORD


def change(spec: TensorSpec, indices: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> int:
    """What the fingerprint gains when the elements at `indices` (int64 [n]) go from bits `old` to `new` ([n] each)."""
    return (elements(spec, indices, new) - elements(spec, indices, old)) % _WORD


def to_text(value: int) -> str:
    """16 lower-case hexadecimal digits."""
    return f"{value % _WORD:016x}"


def _sum(spec: TensorSpec, places: torch.Tensor, patterns: torch.Tensor) -> int:
    return int(_mix(_mix(places + _seed(spec)) ^ widen(patterns)).sum().item())


def _length(values: torch.Tensor) -> int:
    return _PART if values.device.type == "cpu" else _PART_ON_GPU


def _seed(spec: TensorSpec) -> int:
    """As a signed 64-bit number, which is how torch holds it."""
    text = json.dumps([spec.name, spec.dtype, list(spec.shape)], separators=(",", ":"), ensure_ascii=False)
    seed = xxhash.xxh3_64_intdigest(text.encode())
    return seed - _WORD if seed >= _WORD // 2 else seed


def _mix(x: torch.Tensor) -> torch.Tensor:
    """In place, and returned."""
    x ^= _shift(x, 30)
    x *= _MULTIPLIERS[0]
    x ^= _shift(x, 27)
    x *= _MULTIPLIERS[1]
    x ^= _shift(x, 31)
    return x


def _shift(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical right shift: torch's own copies the sign."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)
