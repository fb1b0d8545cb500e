import json

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shared import fingerprint
from shared.bits import DTYPES, bits, itemsize, spec_of
from shared.changes import Change, fingerprint_gain
from shared.types import TensorSpec
from tests.shared.weights import (
    Weights,
    changed,
    changes_between,
    from_patterns,
    property_test,
    sparse_changes,
    tensors,
    weights,
    weights_and_change,
)

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def seed_of(spec: TensorSpec) -> int:
    text = json.dumps([spec.name, spec.dtype, list(spec.shape)], separators=(",", ":"), ensure_ascii=False)
    return xxhash.xxh3_64_intdigest(text.encode())


def counted_by_hand(held: Weights) -> int:
    """The definition, in plain integers."""
    total = 0
    for name, tensor in held.items():
        spec = spec_of(name, tensor)
        seed, size = seed_of(spec), itemsize(spec.dtype)
        raw = bits(tensor).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        total += mix(seed)
        for i in range(tensor.numel()):
            pattern = int.from_bytes(raw[i * size : (i + 1) * size], "little")
            total += mix(mix((seed + i) & MASK) ^ pattern)
    return total & MASK


def text_of(tensors: Weights) -> str:
    return fingerprint.to_text(fingerprint.fingerprint(tensors))


@property_test
@given(weights())
def test_the_fingerprint_is_what_plain_integers_give(tensors: Weights) -> None:
    assert fingerprint.fingerprint(tensors) == counted_by_hand(tensors)


def test_the_fingerprint_of_known_weights_never_changes() -> None:
    tensors = {"a": torch.tensor([[1.0, -0.0]], dtype=torch.bfloat16), "b": torch.empty(0, dtype=torch.int64)}
    assert text_of(tensors) == "9169ccb94249637a"
    assert text_of({}) == "0000000000000000"


@pytest.mark.parametrize("dtype", DTYPES)
@property_test
@given(data=st.data())
def test_every_change_of_a_sequence_leads_to_a_full_recount(dtype: str, data: st.DataObject) -> None:
    held = {"a": data.draw(tensors((dtype,))), "b": data.draw(tensors((dtype,)))}
    kept = fingerprint.fingerprint(held)
    for _ in range(data.draw(st.integers(1, 4))):
        new = data.draw(changed(held))
        kept += fingerprint_gain(changes_between(held, new))
        assert fingerprint.to_text(kept) == text_of(new)
        held = new


@property_test
@given(tensors(), st.data())
def test_a_tensor_is_its_header_and_its_elements_in_any_parts(whole: torch.Tensor, data: st.DataObject) -> None:
    spec, patterns = spec_of("a", whole), bits(whole)
    chosen = data.draw(st.sets(st.integers(0, whole.numel() - 1))) if whole.numel() else set()
    part = torch.tensor([index in chosen for index in range(whole.numel())], dtype=torch.bool)
    terms = [fingerprint.header(spec)]
    terms += [fingerprint.elements(spec, places, patterns[places]) for places in (index_of(part), index_of(~part))]
    assert all(0 <= term <= MASK for term in terms)
    assert sum(terms) & MASK == fingerprint.tensor(spec, patterns) == fingerprint.fingerprint({"a": whole})


def index_of(mask: torch.Tensor) -> torch.Tensor:
    return mask.nonzero().reshape(-1)


@property_test
@given(sparse_changes())
def test_a_gain_of_any_change_is_what_plain_integers_give(changes: list[Change]) -> None:
    expected = 0
    for change in changes:
        seed, size = seed_of(change.spec), itemsize(change.spec.dtype)
        for i, old, new in zip(change.indices.tolist(), change.old.tolist(), change.new.tolist(), strict=True):
            place, mask = mix((seed + i) & MASK), (1 << 8 * size) - 1
            expected += mix(place ^ (new & mask)) - mix(place ^ (old & mask))
    assert fingerprint_gain(changes) & MASK == expected & MASK


@property_test
@given(weights_and_change())
def test_a_change_updates_the_fingerprint_to_a_full_recount(pair: tuple[Weights, Weights]) -> None:
    old, new = pair
    gained = fingerprint.fingerprint(old) + fingerprint_gain(changes_between(old, new))
    assert fingerprint.to_text(gained) == text_of(new)


@property_test
@given(weights())
def test_the_order_of_tensors_does_not_matter(tensors: Weights) -> None:
    assert text_of(dict(reversed(tensors.items()))) == text_of(tensors)


@property_test
@given(weights(), st.data())
def test_one_bit_anywhere_changes_the_fingerprint(tensors: Weights, data: st.DataObject) -> None:
    before = text_of(tensors)
    filled = [tensor for tensor in tensors.values() if tensor.numel()]
    if not filled:
        return
    patterns = bits(data.draw(st.sampled_from(filled))).view(torch.uint8)
    place, bit = data.draw(st.integers(0, patterns.numel() - 1)), data.draw(st.integers(0, 7))
    patterns[place] ^= 1 << bit
    assert text_of(tensors) != before


def test_name_dtype_and_shape_count() -> None:
    plain = torch.zeros(6, dtype=torch.float16)
    texts = {
        text_of({"a": plain}),
        text_of({"b": plain}),
        text_of({"a": plain.to(torch.bfloat16)}),
        text_of({"a": plain.reshape(2, 3)}),
        text_of({"a": plain.reshape(3, 2)}),
        text_of({"a": plain, "b": torch.empty(0)}),
    }
    assert len(texts) == 6


def test_two_swapped_elements_count() -> None:
    assert text_of({"a": torch.tensor([1.0, 2.0])}) != text_of({"a": torch.tensor([2.0, 1.0])})


def test_the_layout_in_memory_does_not_count() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    turned = tensor.t().contiguous().t()
    assert not turned.is_contiguous()
    assert text_of({"a": turned}) == text_of({"a": tensor})


def test_long_tensors_are_counted_in_parts_that_add_up() -> None:
    count = (1 << 18) + 3
    zeros = torch.zeros(count, dtype=torch.int8)
    other = zeros.clone()
    other[-1] = 1
    spec = spec_of("a", zeros)
    gain = fingerprint.change(spec, torch.tensor([count - 1]), zeros[-1:], other[-1:])
    assert fingerprint.to_text(fingerprint.fingerprint({"a": zeros}) + gain) == text_of({"a": other})
    assert fingerprint.header(spec) + fingerprint.elements(spec, torch.arange(count), other) & MASK == (
        fingerprint.tensor(spec, other)
    )


@pytest.mark.parametrize("index", [(1 << 31) - 1, 1 << 31, (1 << 32) + 1])
def test_indices_beyond_two_to_the_31_are_not_cut(index: int) -> None:
    spec = TensorSpec("huge", "BF16", (1 << 17, 1 << 17))
    old, new = from_patterns("BF16", (1,), [0x3F80]), from_patterns("BF16", (1,), [0x3F81])
    seed = seed_of(spec)
    place = mix((seed + index) & MASK)
    expected = (mix(place ^ 0x3F81) - mix(place ^ 0x3F80)) & MASK
    assert fingerprint.change(spec, torch.tensor([index]), bits(old), bits(new)) == expected
