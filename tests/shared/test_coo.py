import pytest
import torch
from hypothesis import given

from shared.bits import bits, spec_of
from shared.changes import Change
from shared.coo import decode, encode
from shared.errors import IntegrityError
from shared.types import TensorSpec
from tests.shared.weights import Weights, changes_between, property_test, weights_and_change

SPEC = TensorSpec("a", "BF16", (2, 3))
TABLE = [(SPEC, 2)]
INDICES = torch.tensor([1, 5], dtype=torch.int32)
VALUES = torch.tensor([1.0, float("nan")], dtype=torch.bfloat16)


@property_test
@given(weights_and_change())
def test_encoding_and_decoding_is_bit_exact(pair: tuple[Weights, Weights]) -> None:
    old, new = pair
    changes = [change for change in changes_between(old, new) if change.count]
    encoded = encode(changes)
    assert all(spec == spec_of(spec.name, tensor) for spec, tensor in encoded)
    table = [(change.spec, change.count) for change in changes]
    patches = decode(table, {spec.name: tensor for spec, tensor in encoded})
    for change, patch in zip(changes, patches, strict=True):
        made = patch.on(bits(old[change.spec.name]))
        assert torch.equal(made.indices, change.indices)
        assert torch.equal(made.new, change.new)


def test_tensors_carry_the_public_names_and_types() -> None:
    change = Change(SPEC, torch.tensor([1, 5]), bits(VALUES), bits(VALUES))
    encoded = {spec.name: tensor for spec, tensor in encode([change])}
    assert encoded.keys() == {"a.indices", "a.values"}
    assert encoded["a.indices"].dtype == torch.int32
    assert encoded["a.values"].dtype == torch.bfloat16


@pytest.mark.parametrize(("length", "dtype"), [((1 << 31) - 1, torch.int32), (1 << 31, torch.int64)])
def test_indices_past_two_to_the_31_are_wide(length: int, dtype: torch.dtype) -> None:
    spec = TensorSpec("a", "BF16", (length,))
    change = Change(spec, torch.tensor([0, length - 1]), bits(VALUES), bits(VALUES))
    tensors = {spec.name: tensor for spec, tensor in encode([change])}
    assert tensors["a.indices"].dtype == dtype
    assert decode([(spec, 2)], tensors)[0].indices.tolist() == [0, length - 1]


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"a.indices": INDICES},
        {"a.values": VALUES},
        {"a.indices": INDICES, "a.values": VALUES, "b.values": VALUES},
        {"a.indices": INDICES[:1], "a.values": VALUES},
        {"a.indices": INDICES, "a.values": VALUES[:1]},
        {"a.indices": INDICES[:1], "a.values": VALUES[:1]},
        {"a.indices": INDICES.reshape(2, 1), "a.values": VALUES.reshape(2, 1)},
        {"a.indices": INDICES, "a.values": VALUES.to(torch.float16)},
        {"a.indices": INDICES.to(torch.float32), "a.values": VALUES},
        {"a.indices": INDICES.to(torch.uint8), "a.values": VALUES},
        {"a.indices": torch.tensor([1, 6]), "a.values": VALUES},
        {"a.indices": torch.tensor([-1, 5]), "a.values": VALUES},
        {"a.indices": torch.tensor([5, 1]), "a.values": VALUES},
        {"a.indices": torch.tensor([1, 1]), "a.values": VALUES},
    ],
)
def test_tensors_that_do_not_fit_the_table_are_an_integrity_error(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(IntegrityError, match="a"):
        decode(TABLE, tensors)
