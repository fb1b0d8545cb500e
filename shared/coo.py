"""The coo encoding: for each changed tensor X, flat indices `X.indices` and new values `X.values`, uncompressed.

The layout of public sparse weight patches: any tool that reads safetensors reads it, at 6 bytes per bf16 change.
"""

from collections.abc import Mapping, Sequence

import torch

from shared.bits import DTYPES, bits, spec_of
from shared.changes import Change, Patch
from shared.errors import IntegrityError
from shared.types import TensorSpec

_INDICES, _VALUES = ".indices", ".values"


def encode(changes: Sequence[Change]) -> list[tuple[TensorSpec, torch.Tensor]]:
    """Indices are int32, int64 for tensors of 2**31 elements and more; values have the tensor's dtype."""
    tensors = {}
    for change in changes:
        narrow = change.spec.numel < 1 << 31
        tensors[change.spec.name + _INDICES] = change.indices.to(torch.int32 if narrow else torch.int64)
        tensors[change.spec.name + _VALUES] = change.new.view(DTYPES[change.spec.dtype])
    return [(spec_of(name, tensor), tensor) for name, tensor in tensors.items()]


def decode(table: Sequence[tuple[TensorSpec, int]], tensors: Mapping[str, torch.Tensor]) -> list[Patch]:
    """The patches of the tensors in `table`. Raises IntegrityError when a tensor of the file does not fit it."""
    expected = {spec.name + end for spec, _ in table for end in (_INDICES, _VALUES)}
    if expected != set(tensors):
        raise IntegrityError(f"the file's tensors differ from its table: {sorted(expected ^ set(tensors))[:4]}")
    return [_patch(spec, count, tensors[spec.name + _INDICES], tensors[spec.name + _VALUES]) for spec, count in table]


def _patch(spec: TensorSpec, count: int, indices: torch.Tensor, values: torch.Tensor) -> Patch:
    wide = indices.to(torch.int64)
    if wide.shape != (count,) or values.shape != (count,) or values.dtype != DTYPES[spec.dtype]:
        raise IntegrityError(
            f"{spec.name}: {count} {spec.dtype} changes are announced, found indices {tuple(indices.shape)} "
            f"and values {tuple(values.shape)} {values.dtype}"
        )
    ordered = bool((wide[1:] > wide[:-1]).all())
    if count and not (ordered and int(wide[0]) >= 0 and int(wide[-1]) < spec.numel):
        raise IntegrityError(f"{spec.name}: indices are not strictly increasing within {spec.numel} elements")
    return Patch(spec, wide, bits(values), relative=False)
