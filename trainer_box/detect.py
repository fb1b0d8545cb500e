"""What changed since the newest whole version, by bit patterns of the served dtype, one tensor at a time.

Always against what the bucket holds, never against the last step: so skipped and failed syncs, several steps per sync,
any optimizer, -0.0 and sign flips are right by construction.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from shared.bits import DTYPES, bits, is_float, spec_of
from shared.changes import Change
from shared.errors import SyncError
from shared.types import TensorSpec

NamedTensors = Iterable[tuple[str, torch.Tensor]]


def served(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """The tensor as it goes out: float tensors cast to `dtype` when one is given, all others as they are."""
    plain = tensor.detach()
    return plain.to(dtype) if dtype is not None and plain.is_floating_point() else plain


def copy_all(named: NamedTensors, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """Contiguous CPU copies of all tensors. Raises SyncError when a name comes twice or a dtype is not supported."""
    copies: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        spec_of(name, out := served(name, tensor, dtype))
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
    changes: list[Change] = []
    seen: set[str] = set()
    for name, tensor in named:
        out = served(name, tensor, dtype)
        _check_known(name, out, held, seen)
        seen.add(name)
        changes.append(_compare(spec_of(name, out), out, held[name]))
    if missing := sorted(held.keys() - seen):
        raise SyncError(
            f"{len(missing)} tensors of the run were not given, such as {missing[0]!r}; publish all of them"
        )
    return [change for change in changes if change.count]


def _check_known(name: str, out: torch.Tensor, held: Mapping[str, torch.Tensor], seen: set[str]) -> None:
    if name in seen:
        raise SyncError(f"tensor {name!r} was given twice; each parameter is published once")
    if name not in held:
        raise SyncError(f"tensor {name!r} is new in this run; a run's parameters keep their names (is it wrapped?)")
    given, known = spec_of(name, out), spec_of(name, held[name])
    if given != known:
        raise SyncError(f"tensor {name!r} is {given.dtype} {given.shape}, the run has {known.dtype} {known.shape}")


def _compare(spec: TensorSpec, out: torch.Tensor, held: torch.Tensor) -> Change:
    new, old = bits(out), bits(held)
    places = _where(new != old.to(new.device))
    change = Change(spec, places.cpu(), old[places.cpu()], new[places].cpu())
    _refuse_nonfinite(change)
    return change


def _where(mask: torch.Tensor) -> torch.Tensor:
    """Indices, on the mask's device; on the CPU numpy finds them several times faster than torch."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().reshape(-1)


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
