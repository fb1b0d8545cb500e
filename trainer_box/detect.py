"""What changed since the newest whole version, by bit patterns of the served dtype, one tensor at a time.

Always against what the bucket holds, never against the last step: so skipped and failed syncs, several steps per sync,
any optimizer, -0.0 and sign flips are right by construction.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from shared.bits import DTYPES, bits, dtype_name, is_float, spec_of
from shared.changes import Change
from shared.errors import SyncError
from shared.types import TensorSpec

PIECE = 1 << 19
"""Elements that are compared at once: what that takes is small, whatever the tensor."""
_THREADS = 4

NamedTensors = Iterable[tuple[str, torch.Tensor]]


def _spec_of(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> TensorSpec:
    """As the tensor goes out: in `dtype` when that is given and it is a float tensor, else in its own."""
    if tensor.is_meta or tensor.layout is not torch.strided:
        place = "on no device" if tensor.is_meta else f"of layout {tensor.layout}"
        raise SyncError(f"tensor {name!r} is {place}, so it has no elements to compare; load or gather it first")
    spec = spec_of(name, tensor)
    return replace(spec, dtype=dtype_name(dtype)) if dtype is not None and tensor.is_floating_point() else spec


def copy_all(named: NamedTensors, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """Contiguous CPU copies of all tensors. Raises SyncError when a name comes twice or a dtype is not supported."""
    copies: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        spec = _spec_of(name, tensor, dtype)
        if name in copies:
            raise SyncError(f"tensor {name!r} was given twice; each parameter is published once")
        out = tensor.detach().to(DTYPES[spec.dtype])
        copies[name] = out.to("cpu", copy=True, memory_format=torch.contiguous_format)
    if not copies:
        raise SyncError("no tensors were given; every parameter of the model is published")
    return copies


def find_changes(named: NamedTensors, held: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> list[Change]:
    """The changes (on the CPU) from `held` to `named`, which must be the same tensors in the same shapes and dtypes.

    Raises SyncError for a missing, new, repeated or reshaped tensor, and when an element became NaN or infinite.
    """
    changes, seen = list[Change](), set[str]()
    with ThreadPoolExecutor(_THREADS, "compare") as pool:
        for name, tensor in named:
            spec = _checked(name, tensor, held, dtype, seen)
            change = _compare(pool, spec, tensor.detach().reshape(-1), bits(held[name]))
            if change.count:
                _refuse_nonfinite(change)
                changes.append(change)
    if missing := sorted(held.keys() - seen):
        raise SyncError(
            f"{len(missing)} tensors of the run were not given, such as {missing[0]!r}; publish all of them"
        )
    return changes


def _checked(
    name: str, tensor: torch.Tensor, held: Mapping[str, torch.Tensor], dtype: torch.dtype | None, seen: set[str]
) -> TensorSpec:
    if name in seen:
        raise SyncError(f"tensor {name!r} was given twice; each parameter is published once")
    if name not in held:
        raise SyncError(f"tensor {name!r} is new in this run; a run's parameters keep their names (is it wrapped?)")
    given, known = _spec_of(name, tensor, dtype), spec_of(name, held[name])
    if given != known:
        raise SyncError(f"tensor {name!r} is {given.dtype} {given.shape}, the run has {known.dtype} {known.shape}")
    seen.add(name)
    return known


def _compare(pool: ThreadPoolExecutor, spec: TensorSpec, given: torch.Tensor, held: torch.Tensor) -> Change:
    """All of one tensor, so that its memory may be used for the next one: `given` flat as it comes, `held` bits."""

    def compare(start: int) -> Change:
        new = bits(given[start : start + PIECE].to(DTYPES[spec.dtype]))
        old = held[start : start + PIECE]
        places = _where(new, old)
        here = places.cpu()
        return Change(spec, here + start, old.index_select(0, here), new.index_select(0, places).cpu())

    pieces = list(pool.map(compare, range(0, max(spec.numel, 1), PIECE)))
    return pieces[0] if len(pieces) == 1 else _joined(pieces)


def _where(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Indices of the bits that differ, on the device of `new`; on the CPU numpy takes half the time of torch."""
    if new.is_cpu:
        return torch.from_numpy(np.flatnonzero(new.numpy() != old.numpy()))
    return (new != old.to(new.device)).nonzero().reshape(-1)


def _joined(pieces: Sequence[Change]) -> Change:
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
