"""Where the elements of one checkpoint tensor go in the live model, found by watching vLLM's own loader.

The loader runs under a dispatch mode that stops every write to memory that was there before: nothing is changed, and
what would have been copied where is known. Nothing here judges whether that is right or complete.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Load = Callable[[Iterable[tuple[str, torch.Tensor]]], set[str]]


@dataclass(frozen=True)
class Region:
    """A copy that the loader makes: a strided view of the wire tensor into a strided view of live memory.

    Strides and offsets count elements: `wire` ones in the flat checkpoint tensor, `live` ones in `memory`, which is
    all of a live storage as a flat tensor of its dtype.
    """

    memory: torch.Tensor
    shape: tuple[int, ...]
    wire_strides: tuple[int, ...]
    wire_offset: int
    live_strides: tuple[int, ...]
    live_offset: int

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    def live(self) -> torch.Tensor:
        return self.memory.as_strided(self.shape, self.live_strides, self.live_offset)


@dataclass
class Trace:
    """Of one tensor. `loaded` are the parameters that the loader says it wrote.

    `complete` is false when some of what the loader writes cannot be told from the tensor's elements: it computed
    values, or wrote them with something else than a copy. Filling what no element reaches (padding) is no such write.
    """

    regions: list[Region] = field(default_factory=list)
    loaded: set[str] = field(default_factory=set)
    complete: bool = True


def trace(load: Load, name: str, tensor: torch.Tensor) -> Trace:
    """What `load` would write of `tensor` (contiguous, on the CPU). Raises whatever the loader raises."""
    found = Trace()
    with torch.no_grad(), _Watch(tensor, found):
        found.loaded = set(load([(name, tensor)]) or ())
    return found


class Witness(TorchDispatchMode):
    """Counts what is copied out of given tensors, and lets everything happen."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {storage_of(tensor): name for name, tensor in tensors.items()}
        self.copied = dict.fromkeys(tensors, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and not args[0].is_meta:
            name = self._names.get(storage_of(args[1]))
            if name is not None:
                self.copied[name] += args[0].numel()
        return func(*args, **(kwargs or {}))


class _Watch(TorchDispatchMode):
    def __init__(self, wire: torch.Tensor, found: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wire = wire
        self._found = found
        self._made: set[int] = set()  # storages that the loader allocated itself: it may write to them
        self._alive: list[torch.Tensor] = []  # so that none of their identities is used again
        self._has_read = False  # a value of some tensor, which any later fill may write

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = [tensor for tensor in _written(func, args, kwargs) if storage_of(tensor) not in self._made]
        if written:
            self._note(func, written, args)
            return {0: None, 1: written[0]}.get(len(func._schema.returns), tuple(written))
        self._has_read |= func is torch.ops.aten._local_scalar_dense.default
        out = func(*args, **kwargs)
        self._remember(out, args, kwargs)
        return out

    def _note(self, func: Any, written: list[torch.Tensor], args: Any) -> None:
        live = written[0]
        if func in _COPIES and storage_of(args[1]) == storage_of(self._wire) and args[1].dtype == self._wire.dtype:
            self._found.regions.append(_region(live, args[1].expand(live.shape), self._wire))
        elif not self._is_padding(func, args):
            self._found.complete = False

    def _is_padding(self, func: Any, args: Any) -> bool:
        """Whether this writes a value that has nothing to do with the tensor."""
        if self._has_read or func not in _FILLS:
            return False
        return not {storage_of(value) for value in _tensors(args[1:])} & {storage_of(self._wire), *self._made}

    def _remember(self, out: Any, args: Any, kwargs: Any) -> None:
        given = {storage_of(tensor) for tensor in _tensors([args, kwargs])}
        for tensor in _tensors(out):
            if storage_of(tensor) not in given:
                self._made.add(storage_of(tensor))
                self._alive.append(tensor)


_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten.fill_.Tensor)
_FILLS = (torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor, torch.ops.aten.zero_.default)


def _region(live: torch.Tensor, wire: torch.Tensor, whole: torch.Tensor) -> Region:
    memory = torch.empty(0, dtype=live.dtype, device=live.device).set_(live.untyped_storage())
    shape, wire_strides, live_strides = _merged(tuple(live.shape), wire.stride(), live.stride())
    offset = int(wire.storage_offset()) - int(whole.storage_offset())
    return Region(memory, shape, wire_strides, offset, live_strides, int(live.storage_offset()))


def _merged(shape: Any, wire: Any, live: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The same view with as few dimensions as possible: one, when both sides are contiguous."""
    merged: list[tuple[int, int, int]] = []
    for size, a, b in zip(shape, wire, live, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1:] == (a * size, b * size):
            merged[-1] = (merged[-1][0] * size, a, b)
        else:
            merged.append((size, a, b))
    sizes, a_strides, b_strides = zip(*merged or [(1, 1, 1)], strict=True)
    return sizes, a_strides, b_strides


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that this operation changes in place."""
    found: list[torch.Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += _tensors(value)
    return found


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, list | tuple) else []


def storage_of(tensor: torch.Tensor) -> int:
    """Tells the storage that a tensor is a view of from all others, which its address does not when it is empty."""
    identity: int = tensor.untyped_storage()._cdata
    return identity
