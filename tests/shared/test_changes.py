import pytest
import torch
from hypothesis import given

from shared.bits import bits
from shared.changes import Patch, check_indices
from shared.errors import IntegrityError
from shared.types import TensorSpec
from tests.shared.weights import Weights, changes_between, property_test, weights_and_change


@property_test
@given(weights_and_change())
def test_an_absolute_and_a_relative_patch_make_the_same_change(pair: tuple[Weights, Weights]) -> None:
    old, new = pair
    for change in changes_between(old, new):
        base = bits(old[change.spec.name])
        absolute = Patch(change.spec, change.indices, change.new, relative=False).on(base)
        relative = Patch(change.spec, change.indices, change.new - change.old, relative=True).on(base)
        for made in (absolute, relative):
            assert torch.equal(made.old, change.old)
            assert torch.equal(made.new, change.new)
            base_after = base.clone()
            base_after[made.indices] = made.new
            assert torch.equal(base_after, bits(new[change.spec.name]))


@pytest.mark.parametrize("indices", [[], [0], [5], [0, 1, 2, 3, 4, 5], [(1 << 31) - 1, 1 << 31]])
def test_increasing_indices_inside_the_tensor_are_good(indices: list[int]) -> None:
    shape = (1 << 16, 1 << 16) if max(indices, default=0) > 5 else (2, 3)
    check_indices(TensorSpec("a", "BF16", shape), torch.tensor(indices, dtype=torch.int64))


@pytest.mark.parametrize("indices", [[6], [-1], [0, 0], [1, 0], [0, 5, 3], [-(1 << 63), 1], [0, (1 << 63) - 1]])
def test_any_other_indices_are_an_integrity_error(indices: list[int]) -> None:
    with pytest.raises(IntegrityError, match="tensor 'a': "):
        check_indices(TensorSpec("a", "BF16", (2, 3)), torch.tensor(indices))


def test_an_empty_tensor_has_no_index() -> None:
    with pytest.raises(IntegrityError):
        check_indices(TensorSpec("a", "BF16", (0,)), torch.tensor([0]))
