"""Bit patterns of tensors: dtypes by safetensors' names, and integer views that no float comparison can fool."""

import reprlib
from typing import Any

import torch

from shared.errors import SyncError
from shared.types import TensorSpec

DTYPES: dict[str, torch.dtype] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
LONGEST_NAME = 1000  # characters
MOST_DIMENSIONS = 64  # as torch computes with
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_TOO_MANY = 1 << 60  # elements: no machine holds them, and torch would overflow
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_name(dtype: torch.dtype) -> str:
    """Raises SyncError for a dtype that has no place in the format."""
    if dtype not in _NAMES:
        raise SyncError(f"dtype {dtype} is not supported; supported are {', '.join(map(str, _NAMES))}")
    return _NAMES[dtype]


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Raises SyncError for a tensor that the format has no place for."""
    if len(name) > LONGEST_NAME:
        raise SyncError(
            f"a tensor has a name of {len(name)} characters ({name[:40]!r}...), at most {LONGEST_NAME} fit"
        )
    return TensorSpec(name, dtype_name(tensor.dtype), tuple(tensor.shape))


def parse_spec(name: Any, dtype: Any, shape: Any) -> TensorSpec:
    """A spec as a file states it. Raises ValueError when it describes no tensor of the format."""
    if not isinstance(name, str) or not isinstance(dtype, str) or dtype not in DTYPES or not _is_shape(shape):
        raise ValueError(f"dtype {reprlib.repr(dtype)}, shape {reprlib.repr(shape)}")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a name of {len(name)} characters, {reprlib.repr(name)}")
    elements = 1
    for length in shape:
        if (elements := elements * max(length, 1)) >= _TOO_MANY:  # at once: the product of all might take hours
            raise ValueError(f"shape {reprlib.repr(shape)} is too large")
    return TensorSpec(name, dtype, tuple(shape))


def _is_shape(shape: Any) -> bool:
    is_short = isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS
    return is_short and all(type(length) is int and length >= 0 for length in shape)


def itemsize(dtype: str) -> int:
    """Bytes per element."""
    return DTYPES[dtype].itemsize


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bit patterns as a flat signed integer view of the same element size.

    A contiguous tensor is viewed, so writing to the result writes to the tensor; any other is copied first.
    """
    return tensor.detach().reshape(-1).view(_INTEGERS[tensor.element_size()])


def widen(patterns: torch.Tensor) -> torch.Tensor:
    """Bit patterns as int64, zero-extended."""
    size = patterns.element_size()
    wide = patterns.to(torch.int64)
    return wide if size == 8 else wide & ((1 << (8 * size)) - 1)


def is_float(dtype: str) -> bool:
    return DTYPES[dtype].is_floating_point
