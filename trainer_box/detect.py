"""What changed since the newest whole version, by bit patterns of the served dtype, a few pieces of tensors at a time.

Always against what the bucket holds, never against the last step: so skipped and failed syncs, several steps per sync,
any optimizer, -0.0 and sign flips are right by construction.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from shared.bits import DTYPES, bits, dtype_name, is_float, spec_of
from shared.changes import Change
from shared.errors import SyncError
from shared.types import TensorSpec

PIECE = 1 << 21
"""Elements compared at once: what is needed between the cast and the places of the changes is small, whatever the
tensor."""

IN_FLIGHT = 4

NamedTensors = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class _Piece:
    """The elements of a tensor from `start` on: `given` [n] as it comes, `old` [n] the bits that are held."""

    spec: TensorSpec
    start: int
    given: torch.Tensor
    old: torch.Tensor


def served_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """What the tensor goes out in: `dtype` for a float tensor, when one is given; else its own."""
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def copy_all(named: NamedTensors, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """Contiguous CPU copies of all tensors. Raises SyncError when a name comes twice or a dtype is not supported."""
    copies: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        spec_of(name, out := tensor.detach().to(served_dtype(tensor, dtype)))
        if name in copies:
            raise SyncError(f"tensor {name!r} was given twice; each parameter is published once")
        copies[name] = out.to("cpu", copy=True, memory_format=torch.contiguous_format)
    if not copies:
        raise SyncError("no tensors were given; every parameter of the model is published")
    return copies


def find_changes(named: NamedTensors, held: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> list[Change]:
    """The changes (on the CPU) from `held` to `named`, which must be the same tensors in the same shapes and dtypes.

    Raises SyncError for a missing, new, repeated or reshaped tensor, and when an element became NaN or infinite.
    """
    with ThreadPoolExecutor(IN_FLIGHT, "compare") as pool:
        found = (change for change in _compared(pool, _pieces(named, held, dtype)) if change.count)
        changes = [_joined(list(pieces)) for _, pieces in groupby(found, lambda change: change.spec)]
    for change in changes:
        _refuse_nonfinite(change)
    return changes


def _pieces(named: NamedTensors, held: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> Iterator[_Piece]:
    seen: set[str] = set()
    for name, tensor in named:
        spec = _checked(name, tensor, held, dtype, seen)
        given, old = tensor.detach().reshape(-1), bits(held[name])
        for start in range(0, spec.numel, PIECE):
            end = start + PIECE
            yield _Piece(spec, start, given[start:end], old[start:end])
    if missing := sorted(held.keys() - seen):
        raise SyncError(
            f"{len(missing)} tensors of the run were not given, such as {missing[0]!r}; publish all of them"
        )


def _checked(
    name: str, tensor: torch.Tensor, held: Mapping[str, torch.Tensor], dtype: torch.dtype | None, seen: set[str]
) -> TensorSpec:
    if name in seen:
        raise SyncError(f"tensor {name!r} was given twice; each parameter is published once")
    if name not in held:
        raise SyncError(f"tensor {name!r} is new in this run; a run's parameters keep their names (is it wrapped?)")
    given = TensorSpec(name, dtype_name(served_dtype(tensor, dtype)), tuple(tensor.shape))
    known = spec_of(name, held[name])
    if given != known:
        raise SyncError(f"tensor {name!r} is {given.dtype} {given.shape}, the run has {known.dtype} {known.shape}")
    seen.add(name)
    return known


def _compared(pool: ThreadPoolExecutor, pieces: Iterable[_Piece]) -> Iterator[Change]:
    """The changes of each piece, in order. Few are under way at a time: no piece is asked for sooner."""
    under_way = deque[Future[Change]]()
    for piece in pieces:
        under_way.append(pool.submit(_compare, piece))
        if len(under_way) > IN_FLIGHT:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _compare(piece: _Piece) -> Change:
    new, old = bits(piece.given.to(DTYPES[piece.spec.dtype])), piece.old
    places = _where(new, old)
    here = places.cpu()
    return Change(piece.spec, here + piece.start, old.index_select(0, here), new.index_select(0, places).cpu())


def _where(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Indices of the bits that differ, on the device of `new`; on the CPU numpy takes half the time of torch."""
    if new.is_cpu:
        return torch.from_numpy(np.flatnonzero(new.numpy() != old.numpy()))
    return (new != old.to(new.device)).nonzero().reshape(-1)


def _joined(pieces: Sequence[Change]) -> Change:
    if len(pieces) == 1:
        return pieces[0]
    indices, old, new = (torch.cat([getattr(piece, part) for piece in pieces]) for part in ("indices", "old", "new"))
    return Change(pieces[0].spec, indices, old, new)


def _refuse_nonfinite(change: Change) -> None:
    if not is_float(change.spec.dtype) or bool((finite := _finite(change.new, change.spec)).all()):
        return
    broken = ~finite & _finite(change.old, change.spec)
    if broken.any():
        place = int(change.indices[broken][0])
        raise SyncError(
            f"{int(broken.sum())} elements of {change.spec.name!r} became NaN or infinite, the first at flat index "
            f"{place}; training has diverged, nothing was published"
        )


def _finite(patterns: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    values = patterns.view(DTYPES[spec.dtype])
    return (values.float() if values.itemsize == 1 else values).isfinite()  # torch asks float8 in no other way
