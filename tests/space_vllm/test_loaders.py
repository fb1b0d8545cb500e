"""Values go through a model's own loader, and the live model is compared bit for bit."""

from collections.abc import Iterable

import pytest
import torch

from shared.bits import bits, spec_of
from shared.changes import Change
from shared.errors import SyncError
from space_vllm.loaders import LoaderPlacement

pytestmark = pytest.mark.slow  # importing vLLM takes long


class FusedModel(torch.nn.Module):
    """Two checkpoint tensors in the rows of one live parameter."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(4, 3, dtype=dtype))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        rows = {"upper": slice(0, 2), "lower": slice(2, 4)}
        return {self._load(rows[name], tensor) for name, tensor in weights}

    def _load(self, rows: slice, tensor: torch.Tensor) -> str:
        self.fused.data[rows].copy_(tensor)
        return "fused"


def wire() -> dict[str, torch.Tensor]:
    numbers = torch.arange(12, dtype=torch.bfloat16).view(4, 3) / 3
    return {"upper": numbers[:2].clone(), "lower": numbers[2:].clone()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_changes_of_a_fused_parameter_are_placed_and_compared(dtype: torch.dtype) -> None:
    model, weights = FusedModel(dtype), wire()
    placement = LoaderPlacement(model)
    placement.place_all(weights)
    assert placement.differing(weights) == []
    new = torch.tensor([-0.0, 5.0], dtype=torch.bfloat16)
    indices = torch.tensor([0, 4])
    old = bits(weights["lower"])[indices]
    placement.place_changes([Change(spec_of("lower", weights["lower"]), indices, old, bits(new))])
    assert placement.differing(weights) == ["lower"]
    weights["lower"].view(-1)[indices] = new
    assert placement.differing(weights) == []
    model.fused.data[2, 0] = 0.0  # the sign of a zero counts
    assert placement.differing(weights) == ["lower"]


def test_a_live_dtype_that_cannot_hold_the_values_is_found() -> None:
    placement = LoaderPlacement(FusedModel(torch.bfloat16))
    weights = {name: tensor.float() + 1e-6 for name, tensor in wire().items()}
    placement.place_all(weights)
    assert placement.differing(weights) == ["upper", "lower"]


def test_weights_that_leave_a_parameter_out_are_refused() -> None:
    with pytest.raises(SyncError, match="1 parameters of the live model .* 'fused'"):
        LoaderPlacement(FusedModel(torch.float32)).place_all({})
