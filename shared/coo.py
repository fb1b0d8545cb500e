"""The coo encoding: for each changed tensor X, flat indices `X.indices` and new values `X.values`, uncompressed.

The layout of public sparse weight patches: any tool that reads safetensors reads it, at 6 bytes per bf16 change.
"""

from collections.abc import Mapping, Sequence

import torch

from shared.bits import DTYPES, bits, dtype_name, spec_of
from shared.changes import Change, Patch, check_indices
from shared.errors import IntegrityError
from shared.types import TensorSpec

INDICES, VALUES = ".indices", ".values"


def encode(changes: Sequence[Change]) -> list[tuple[TensorSpec, torch.Tensor]]:
    """Indices are int32, int64 for tensors of 2**31 elements and more; values have the tensor's dtype."""
    tensors = {}
    for change in changes:
        narrow = change.spec.numel < 1 << 31
        tensors[change.spec.name + INDICES] = change.indices.to(torch.int32 if narrow else torch.int64)
        tensors[change.spec.name + VALUES] = change.new.view(DTYPES[change.spec.dtype])
    return [(spec_of(name, tensor), tensor) for name, tensor in tensors.items()]


def decode(table: Sequence[tuple[TensorSpec, int]], tensors: Mapping[str, torch.Tensor]) -> list[Patch]:
    """The patches of the tensors in `table`. Raises IntegrityError when a tensor of the file does not fit it."""
    expected = {spec.name + end for spec, _ in table for end in (INDICES, VALUES)}
    if odd := sorted(expected ^ set(tensors)):
        state = "missing" if odd[0] in expected else "not in the table of changed tensors"
        raise IntegrityError(f"{len(odd)} tensors of the file differ from its table, such as {odd[0]!r}: {state}")
    return [_patch(spec, count, tensors[spec.name + INDICES], tensors[spec.name + VALUES]) for spec, count in table]


def _patch(spec: TensorSpec, count: int, indices: torch.Tensor, values: torch.Tensor) -> Patch:
    fitting = indices.shape == values.shape == (count,) and values.dtype == DTYPES[spec.dtype]
    if not fitting or indices.dtype not in (torch.int32, torch.int64):
        raise IntegrityError(
            f"tensor {spec.name!r}: {count} {spec.dtype} changes are announced, found indices "
            f"{_described(indices)} and values {_described(values)}"
        )
    wide = indices.to(torch.int64)
    check_indices(spec, wide)
    return Patch(spec, wide, bits(values), relative=False)


def _described(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"
