"""Weights for tests: built from raw bit patterns, drawn by hypothesis, changed, compared bit by bit."""

from collections.abc import Mapping
from itertools import accumulate

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from shared.bits import DTYPES, bits, itemsize, spec_of
from shared.changes import Change
from shared.types import TensorSpec

Weights = dict[str, torch.Tensor]

SHAPES = ((), (1,), (0,), (7,), (3, 5), (2, 0, 3), (1, 1, 1), (41,))
FLOATS = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2")
# Zero, minus zero, the smallest and largest denormal, infinities, NaNs with payloads, all ones; per element size.
SPECIAL = {
    1: (0x00, 0x80, 0x01, 0x7F, 0x7C, 0xFC, 0xFF, 0x7D),
    2: (0x0000, 0x8000, 0x0001, 0x007F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF, 0x7C00, 0xFC00, 0x7C01),
    4: (0, 1 << 31, 1, 0x7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0xFFFFFFFF),
    8: (0, 1 << 63, 1, (1 << 52) - 1, 0x7FF << 52, 0xFFF << 52, (0x7FF << 52) + 1, (1 << 64) - 1),
}

property_test = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def from_patterns(dtype: str, shape: tuple[int, ...], patterns: list[int]) -> torch.Tensor:
    """A tensor whose elements have these unsigned bit patterns."""
    size = itemsize(dtype)
    raw = bytearray(b"".join(pattern.to_bytes(size, "little") for pattern in patterns))
    if not raw:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return torch.frombuffer(raw, dtype=torch.uint8).view(DTYPES[dtype]).reshape(shape)


def patterns_of(dtype: str) -> st.SearchStrategy[int]:
    if dtype == "BOOL":
        return st.integers(0, 1)
    size = itemsize(dtype)
    return st.one_of(st.sampled_from(SPECIAL[size]), st.integers(0, (1 << 8 * size) - 1))


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(DTYPES)) -> torch.Tensor:
    dtype, shape = draw(st.sampled_from(dtypes)), draw(st.sampled_from(SHAPES))
    count = torch.Size(shape).numel()
    return from_patterns(dtype, shape, draw(st.lists(patterns_of(dtype), min_size=count, max_size=count)))


def weights() -> st.SearchStrategy[Weights]:
    names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return st.dictionaries(names, tensors(), min_size=1, max_size=4)


@st.composite
def changed(draw: st.DrawFn, old: Weights) -> Weights:
    """The same tensors with none, some or all of their elements replaced by other bit patterns."""
    new = copies(old)
    for name, tensor in new.items():
        dtype = spec_of(name, tensor).dtype
        how = draw(st.sampled_from(("none", "some", "all")))
        places = list(range(tensor.numel())) if how == "all" else []
        if how == "some" and tensor.numel():
            places = sorted(draw(st.sets(st.integers(0, tensor.numel() - 1), max_size=5)))
        if places:
            values = draw(st.lists(patterns_of(dtype), min_size=len(places), max_size=len(places)))
            bits(tensor)[places] = bits(from_patterns(dtype, (len(places),), values))
    return new


@st.composite
def weights_and_change(draw: st.DrawFn) -> tuple[Weights, Weights]:
    old = draw(weights())
    return old, draw(changed(old))


# Unchanged elements between two changes: around the escape of the packed encoding, 2**16, 2**31 and 2**32.
GAPS = (0, 1, 253, 254, 255, 256, 509, 510, 511, 65_534, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) + 255)
ODD_SHAPES = ((1,), (7,), (1, 1, 1), (255,), (256,), (257, 3), (65_537,), (1 << 17, 1 << 17), (1, 1 << 36, 3))


@st.composite
def sparse_changes(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(DTYPES)) -> list[Change]:
    """Changes of tensors of any size, which are described and never allocated."""
    changes = []
    for number in range(draw(st.integers(0, 3))):
        spec = TensorSpec(f"t{number}", draw(st.sampled_from(dtypes)), draw(st.sampled_from(ODD_SHAPES)))
        steps = [gap + 1 for gap in draw(st.lists(st.sampled_from(GAPS), min_size=1, max_size=12))]
        indices = [index - 1 for index in accumulate(steps) if index <= spec.numel] or [spec.numel - 1]
        values = st.lists(patterns_of(spec.dtype), min_size=len(indices), max_size=len(indices))
        old, new = (bits(from_patterns(spec.dtype, (len(indices),), draw(values))) for _ in range(2))
        changes.append(Change(spec, torch.tensor(indices), old, new))
    return changes


def copies(old: Mapping[str, torch.Tensor]) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in old.items()}


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether both hold the same names, dtypes, shapes and bits."""
    return one.keys() == other.keys() and all(
        spec_of(name, tensor) == spec_of(name, other[name]) and torch.equal(bits(tensor), bits(other[name]))
        for name, tensor in one.items()
    )


def changes_between(old: Weights, new: Weights) -> list[Change]:
    """Every element whose bits differ, also those that become NaN or infinite."""
    found = []
    for name, tensor in new.items():
        places = (bits(tensor) != bits(old[name])).nonzero().reshape(-1)
        found.append(Change(spec_of(name, tensor), places, bits(old[name])[places], bits(tensor)[places]))
    return found


def model(seed: int = 0) -> Weights:
    """Three small tensors of finite values, large enough for a sparse delta to be smaller than an anchor."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed.weight": torch.randn(64, 32, generator=generator).to(torch.bfloat16),
        "layer.weight": torch.randn(32, 32, generator=generator).to(torch.bfloat16),
        "norm.weight": torch.randn(32, generator=generator),
    }


def nudge(weights: Weights, seed: int, count: int = 5) -> None:
    """Add one to the bit patterns of a few elements of each tensor, in place."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in weights.values():
        bits(tensor)[torch.randperm(tensor.numel(), generator=generator)[:count]] += 1
