"""One checkpoint tensor in the live model: its elements are read, written and counted where a trace found them.

Knows regions and bit patterns, neither versions nor whether the regions may be believed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from shared import fingerprint
from shared.bits import DTYPES, bits
from shared.changes import Change
from shared.errors import IntegrityError
from shared.types import TensorSpec
from space_vllm.casts import to_live, to_wire
from space_vllm.tracing import Region

_CHUNK = 1 << 20  # elements that are counted at once


@dataclass(frozen=True)
class LiveTensor:
    """`regions` reach every element of the tensor exactly once."""

    spec: TensorSpec
    regions: tuple[Region, ...]

    def read(self, indices: torch.Tensor) -> torch.Tensor:
        """The wire's bit patterns [n] at the flat `indices` (int64 [n], strictly increasing), on the live device."""
        if (run := self._run) is not None:
            return to_wire(_taken(run, indices.to(run.device)), self.spec.dtype)
        none = self._wire_like()
        indices = indices.to(none.device)
        found = none.new_empty(indices.numel())
        for region, chosen, places in self._places(indices):
            found[chosen] = to_wire(_taken(region.memory, places), self.spec.dtype)
        return found

    def write(self, change: Change) -> None:
        if (run := self._run) is not None:
            _put(run, change.indices, to_live(change.new, self.spec.dtype, run.dtype))
            return
        for region, chosen, places in self._places(change.indices):
            _put(region.memory, places, to_live(change.new[chosen], self.spec.dtype, region.memory.dtype))

    def admit(self, patterns: torch.Tensor) -> None:
        """Raises IntegrityError for bits that do not survive the live dtype, as some NaNs do not."""
        for dtype in {region.memory.dtype for region in self.regions} - {DTYPES[self.spec.dtype]}:
            held = to_wire(to_live(patterns, self.spec.dtype, dtype), self.spec.dtype)
            if (lost := (held != patterns).nonzero()).numel():
                place = int(lost[0])
                raise IntegrityError(
                    f"tensor {self.spec.name!r}: {self.spec.dtype} bits {int(patterns[place]):#x} become "
                    f"{int(held[place]):#x} in the live model's {dtype}; publish finite values"
                )

    def whole(self) -> torch.Tensor:
        """The wire tensor's bit patterns, flat and on the CPU, as the live model holds them."""
        found = torch.empty(self.spec.numel, dtype=self._wire_like().dtype)
        for region in self.regions:
            view = torch.as_strided(found, region.shape, region.wire_strides, region.wire_offset)
            view.copy_(to_wire(region.live(), self.spec.dtype).view(region.shape))
        return found

    def count(self, stopped: Callable[[], bool]) -> int | None:
        """The tensor's term of the fingerprint, counted from live memory in small pieces; None when stopped."""
        term = fingerprint.header(self.spec)
        for indices, places, memory in self._pieces():
            if stopped():
                return None
            term += fingerprint.elements(self.spec, indices, to_wire(memory[places], self.spec.dtype))
        return term % (1 << 64)

    @cached_property
    def _run(self) -> torch.Tensor | None:
        """Live memory that holds the whole tensor in its own order, as that of most tensors does."""
        region = self.regions[0]
        if len(self.regions) == 1 and _is_run(region) and region.numel == self.spec.numel:
            return region.memory.narrow(0, region.live_offset, region.numel)
        return None

    def _wire_like(self) -> torch.Tensor:
        """Patterns of no elements, on the live device."""
        return to_wire(self.regions[0].memory[:0], self.spec.dtype)

    def _places(self, indices: torch.Tensor) -> Iterator[tuple[Region, slice | torch.Tensor, torch.Tensor]]:
        """Per region: which of `indices` it holds, and where in its memory."""
        for region in self.regions:
            if _is_run(region):
                first, last = _between(indices, region.wire_offset, region.wire_offset + region.numel)
                yield region, slice(first, last), indices[first:last] + (region.live_offset - region.wire_offset)
            else:
                chosen, places = _strided(region, indices)
                yield region, chosen, places

    def _pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | slice, torch.Tensor]]:
        for region in self.regions:
            for start in range(0, region.numel, _CHUNK):
                stop = min(start + _CHUNK, region.numel)
                steps = torch.arange(start, stop, dtype=torch.int64, device=region.memory.device)
                if _is_run(region):
                    places: torch.Tensor | slice = slice(region.live_offset + start, region.live_offset + stop)
                    yield steps + region.wire_offset, places, region.memory
                else:
                    wire = _offsets(steps, region.shape, region.wire_strides) + region.wire_offset
                    yield wire, _offsets(steps, region.shape, region.live_strides) + region.live_offset, region.memory


def _taken(memory: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """In a pause this is waited for: on a CPU it takes half the time of indexing."""
    return bits(memory).index_select(0, places).view(memory.dtype)


def _put(memory: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
    """As `_taken`."""
    bits(memory).scatter_(0, places, bits(values))


def _is_run(region: Region) -> bool:
    return region.wire_strides == region.live_strides == (1,)


def _between(indices: torch.Tensor, first: int, last: int) -> tuple[int, int]:
    bounds = torch.tensor([first, last], dtype=torch.int64, device=indices.device)
    low, high = torch.searchsorted(indices, bounds).tolist()
    return low, high


def _strided(region: Region, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of `indices` lie in the wire view, and their places in live memory."""
    rest = indices - region.wire_offset
    inside = rest >= 0
    places = torch.full_like(rest, region.live_offset)
    order: Sequence[int] = sorted(range(len(region.shape)), key=lambda dim: -region.wire_strides[dim])
    for dim in order:
        step = rest.div(region.wire_strides[dim], rounding_mode="floor")
        inside &= step < region.shape[dim]
        places += step * region.live_strides[dim]
        rest = rest - step * region.wire_strides[dim]
    inside &= rest == 0
    return inside, places[inside]


def _offsets(steps: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """Offsets of the elements of a view, by their number in the view's own order."""
    offsets = torch.zeros_like(steps)
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        offsets += steps % size * stride
        steps = steps // size
    return offsets
