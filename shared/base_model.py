"""The weights that a run starts from when they are not in its bucket: its base model, as it is served.

Whether they are the run's is for the caller to see by their fingerprint.
"""

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from shared.bits import DTYPES
from shared.bucket.model import model_files
from shared.errors import ChainError, IntegrityError
from shared.types import Base


def load_base(base: Base) -> dict[str, torch.Tensor]:
    """All tensors of the model's files on the CPU, floats cast to `base.dtype`. Raises ChainError without a model."""
    if not base.repo:
        raise ChainError("the run names no base model")
    weights: dict[str, torch.Tensor] = {}
    for path in model_files(base.repo, base.commit):
        try:
            weights.update(load_file(path))
        except SafetensorError as error:
            raise IntegrityError(f"{path} of base model {base.repo!r} cannot be read: {error}") from error
    return {name: _cast(tensor, base.dtype) for name, tensor in weights.items()}


def _cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(DTYPES[dtype]) if dtype and tensor.is_floating_point() else tensor
