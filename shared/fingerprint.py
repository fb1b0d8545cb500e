"""The fingerprint of a set of weights: 64 bits that say whether two sets are the same, bit for bit.

It is the sum, modulo 2**64, over all tensors of mix(seed) and over all their elements of mix(mix(seed + i) ^ b), where
`seed` is xxh3_64 of the tensor's JSON `[name,dtype,shape]`, `i` the flat index and `b` the zero-extended bit pattern.
A sum does not depend on order or layout, and a change of n elements updates it in O(n). It finds accidents, not
attackers. `mix` is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014, constants of variant 13 by Stafford). int64 arithmetic in torch wraps, which is what modulo 2**64 needs.
"""

import json
from collections.abc import Mapping

import torch
import xxhash

from shared.bits import bits, spec_of, widen
from shared.types import TensorSpec

_CHUNK = 1 << 20
_WORD = 1 << 64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - _WORD, 0x94D049BB133111EB - _WORD)


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> int:
    """The fingerprint of whole weights, counted element by element in bounded memory."""
    return sum(_tensor_sum(name, tensor) for name, tensor in tensors.items()) % _WORD


def change(spec: TensorSpec, indices: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> int:
    """What the fingerprint gains when the elements at `indices` (int64 [n]) go from bits `old` to `new` ([n] each)."""
    places = _mix(indices + _seed(spec))
    return int((_mix(places ^ widen(new)) - _mix(places ^ widen(old))).sum().item()) % _WORD


def to_text(value: int) -> str:
    """16 lower-case hexadecimal digits."""
    return f"{value % _WORD:016x}"


def _tensor_sum(name: str, tensor: torch.Tensor) -> int:
    seed = _seed(spec_of(name, tensor))
    patterns = bits(tensor)
    total = int(_mix(torch.tensor([seed], dtype=torch.int64)).item())
    for start in range(0, patterns.numel(), _CHUNK):
        part = patterns[start : start + _CHUNK]
        places = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
        total += int(_mix(_mix(places + seed) ^ widen(part)).sum().item())
    return total


def _seed(spec: TensorSpec) -> int:
    """As a signed 64-bit number, which is how torch holds it."""
    text = json.dumps([spec.name, spec.dtype, list(spec.shape)], separators=(",", ":"), ensure_ascii=False)
    seed = xxhash.xxh3_64_intdigest(text.encode())
    return seed - _WORD if seed >= _WORD // 2 else seed


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift(x, 30)) * _MULTIPLIERS[0]
    x = (x ^ _shift(x, 27)) * _MULTIPLIERS[1]
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical right shift: torch's own copies the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)
