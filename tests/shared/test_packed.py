import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shared.bits import DTYPES, bits, itemsize
from shared.changes import Change
from shared.errors import IntegrityError
from shared.packed import decode, encode
from shared.types import TensorSpec
from tests.shared.weights import Weights, changes_between, property_test, weights_and_change

Table = list[tuple[TensorSpec, int]]
Streams = dict[str, bytes]

SPEC = TensorSpec("a", "BF16", (1000,))
CLOSE = 1.12  # times the entropy


def table_of(changes: list[Change]) -> Table:
    return [(change.spec, change.count) for change in changes]


def change_at(indices: list[int], spec: TensorSpec = SPEC, by: int = 1) -> Change:
    old = torch.arange(len(indices), dtype=torch.int16)
    return Change(spec, torch.tensor(indices, dtype=torch.int64), old, old + by)


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def plain(stream: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(stream)


@property_test
@given(weights_and_change())
def test_encoding_and_decoding_is_bit_exact(pair: tuple[Weights, Weights]) -> None:
    old, new = pair
    changes = [change for change in changes_between(old, new) if change.count]
    patches = decode(table_of(changes), encode(changes))
    assert len(patches) == len(changes)
    for change, patch in zip(changes, patches, strict=True):
        made = patch.on(bits(old[change.spec.name]))
        assert made.spec == change.spec
        assert torch.equal(made.indices, change.indices)
        assert torch.equal(made.new, change.new)
        assert made.new.dtype == change.new.dtype


@property_test
@given(st.sets(st.one_of(st.integers(0, 600), st.integers(0, (1 << 40) - 1)), min_size=1, max_size=30))
def test_gaps_of_any_size_survive(indices: set[int]) -> None:
    change = change_at(sorted(indices), TensorSpec("huge", "BF16", (1 << 20, 1 << 20)))
    assert torch.equal(decode(table_of([change]), encode([change]))[0].indices, change.indices)


@pytest.mark.parametrize(
    "indices", [[254], [255], [256], [65535], [65536], [(1 << 31) - 1, 1 << 31], [(1 << 32) + 254], [(1 << 39) + 300]]
)
@pytest.mark.parametrize("others", [0, 1000])
def test_gaps_at_the_edges_survive(indices: list[int], others: int) -> None:
    """Also between many changes without a gap, beside which they are escapes."""
    places = [*indices, *range(indices[-1] + 1, indices[-1] + 1 + others)]
    change = change_at(places, TensorSpec("huge", "BF16", (1 << 20, 1 << 20)))
    streams = encode([change])
    assert ("gap_escapes" in streams) == (others == 1000 and indices[0] >= 255)
    assert decode(table_of([change]), streams)[0].indices.tolist() == places


@pytest.mark.parametrize("dtype", ["I8", "BF16", "F32", "F64"])
def test_differences_at_the_edges_survive(dtype: str) -> None:
    size = itemsize(dtype)
    numbers = [1, -1, 7, -7, -8, 8, 9, (1 << 8 * size - 1) - 1, -(1 << 8 * size - 1), 0]
    new = torch.tensor(numbers).to(bits(torch.empty(0, dtype=DTYPES[dtype])).dtype)
    change = Change(TensorSpec("a", dtype, (99,)), torch.arange(len(numbers)), torch.zeros_like(new), new)
    streams = encode([change])
    assert len(plain(streams[f"difference_escapes_{size}"])) == 5 * size
    assert torch.equal(decode(table_of([change]), streams)[0].payload, change.new)


@pytest.mark.parametrize("every", [1, 2, 17, 300, 5000])
def test_the_shift_follows_the_usual_gap_and_readers_take_it(every: int) -> None:
    change = change_at(list(range(0, 1_000_000, every)), TensorSpec("a", "BF16", (1_000_000,)))
    shift = plain(encode([change])["gaps"])[0]
    assert (every - 1) >> shift < 32
    assert change.count << shift <= change.spec.numel


def test_changes_in_clusters_cost_as_much_as_if_the_rest_were_not_there() -> None:
    places = torch.rand(20_000, generator=torch.Generator().manual_seed(0)).lt(0.3).nonzero().reshape(-1).tolist()
    alone, clustered = (encode([change_at(places, TensorSpec("a", "BF16", (n,)))]) for n in (20_000, 20_000_000))
    assert {name: len(stream) for name, stream in alone.items()} == {name: len(one) for name, one in clustered.items()}


def adamw_step(elements: int, learning_rate: float, name: str = "a") -> Change:
    """bf16 weights ~ N(0, 0.02), and directions ~ N(0, 0.3)."""
    generator = torch.Generator().manual_seed(len(name))
    weights = torch.randn(elements, generator=generator) * 0.02
    moved = weights - learning_rate * (torch.randn(elements, generator=generator) * 0.3)
    old, new = bits(weights.bfloat16()), bits(moved.bfloat16())
    places = (old != new).nonzero().reshape(-1)
    return Change(TensorSpec(name, "BF16", (elements,)), places, old[places], new[places])


def entropy_bits(change: Change) -> float:
    """Of which elements change, if that is chance alone, and of the differences."""
    count, elements = change.count, change.spec.numel
    positions = elements * entropy_of([count, elements - count])
    return positions + count * entropy_of(np.unique((change.new - change.old).numpy(), return_counts=True)[1])


def entropy_of(counts: Sequence[int] | np.ndarray) -> float:
    shares = np.asarray(counts) / np.sum(counts)
    return -float((shares * np.log2(shares)).sum())


def by_chance(density: float, count: int = 150_000) -> Change:
    """Of so many elements that none need be held: each changes by chance, in the ways of a step."""
    rng = np.random.default_rng(0)
    places = np.cumsum(rng.geometric(density, count)) - 1
    step = adamw_step(1 << 18, 3e-6)
    chosen = torch.from_numpy(rng.integers(step.count, size=count))
    spec = TensorSpec("a", "BF16", (int(places[-1]) + 1,))
    return Change(spec, torch.from_numpy(places), step.old[chosen], step.new[chosen])


@pytest.mark.parametrize("density", [0.0005, 0.002, 0.008, 0.03, 0.1, 0.2, 0.3])
def test_changes_take_little_more_than_their_entropy(density: float) -> None:
    change = by_chance(density)
    assert 8 * sum(map(len, encode([change]).values())) < CLOSE * entropy_bits(change)


@pytest.mark.parametrize(("learning_rate", "elements"), [(3e-6, 1 << 22), (6e-5, 1 << 19)])
def test_a_step_takes_little_more_than_its_entropy(learning_rate: float, elements: int) -> None:
    change = adamw_step(elements, learning_rate)
    assert change.count > 100_000
    assert 8 * sum(map(len, encode([change]).values())) < CLOSE * entropy_bits(change)


def test_tensors_of_different_density_share_the_streams() -> None:
    rates = [1e-7, 3e-5, 1e-6, 6e-5, 3e-7, 1e-5, 3e-6] * 3
    changes = [adamw_step(1 << 18, rate, "a" * (1 + place)) for place, rate in enumerate(rates)]
    taken = sum(map(len, encode(changes).values()))
    assert 8 * taken < CLOSE * sum(map(entropy_bits, changes))


def test_nothing_changed_is_no_stream() -> None:
    assert encode([]) == {}
    assert decode([], {}) == []


def good() -> tuple[Table, Streams]:
    """With every stream there is."""
    near = change_at([*range(40), 3000], TensorSpec("near", "BF16", (4000,)), by=100)
    far = change_at([90, 300, 999])
    changes = [near, far, change_at([0], TensorSpec("b", "BF16", (1,)))]
    return table_of(changes), encode(changes)


NAMES = ["gaps", "remainders", "gap_escapes", "differences", "difference_escapes_2"]


def test_the_good_streams_are_all_there_are() -> None:
    assert sorted(good()[1]) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_stream_is_an_integrity_error(name: str) -> None:
    table, streams = good()
    del streams[name]
    with pytest.raises(IntegrityError, match=name):
        decode(table, streams)


@pytest.mark.parametrize("name", ["difference_escapes_4", "table", "other"])
def test_a_stream_too_many_is_an_integrity_error(name: str) -> None:
    table, streams = good()
    with pytest.raises(IntegrityError, match=name):
        decode(table, {**streams, name: frame(b"\0")})


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_stream_is_an_integrity_error(name: str) -> None:
    table, streams = good()
    whole = streams[name]
    content = plain(whole)
    for broken in (
        b"",
        b"x",
        whole[:-1],
        whole[:5],
        whole + b"\0",
        whole + whole,
        frame(content + b"\0"),
        frame(content[:-1]),
        frame(b""),
        zstandard.ZstdCompressor(write_content_size=False).compress(content),
    ):
        with pytest.raises(IntegrityError, match=name):
            decode(table, {**streams, name: broken})


def test_a_frame_that_unfolds_to_more_than_the_table_says_is_never_unfolded() -> None:
    table, streams = good()
    bomb = frame(b"\0" * (8 << 20))
    assert len(bomb) < 10_000
    with pytest.raises(IntegrityError, match="8388608"):
        decode(table, {**streams, "gaps": bomb})


def test_a_frame_that_lies_about_its_size_is_an_integrity_error() -> None:
    table, streams = good()
    honest = bytearray(frame(b"\0" * 200))
    assert zstandard.frame_content_size(bytes(honest)) == 200
    honest[honest.index(200)] = 4
    with pytest.raises(IntegrityError, match="gaps"):
        decode(table, {**streams, "gaps": bytes(honest)})


def streams_of(gaps: list[int], escapes: list[int], remainders: bytes = b"") -> Streams:
    planes = np.array(escapes, dtype="<u8").view(np.uint8).reshape(-1, 8).T.tobytes()
    streams = {"gaps": bytes(gaps), "gap_escapes": planes, "remainders": remainders}
    streams["differences"] = bytes(len(gaps) // 2)
    return {name: frame(stream) for name, stream in streams.items() if stream}


@pytest.mark.parametrize(("gaps", "escapes"), [([0, 254, 254, 254, 254], []), ([0, 0, 0, 255, 0], [1000])])
def test_an_index_outside_of_its_tensor_is_an_integrity_error(gaps: list[int], escapes: list[int]) -> None:
    with pytest.raises(IntegrityError, match="tensor 'a': "):
        decode([(SPEC, 4)], streams_of(gaps, escapes))


@pytest.mark.parametrize(
    "escapes", [[(1 << 64) - 1], [(1 << 63) - 1], [1 << 63], [(1 << 62), (1 << 62), (1 << 62), (1 << 62)]]
)
def test_gaps_that_wrap_around_are_an_integrity_error(escapes: list[int]) -> None:
    with pytest.raises(IntegrityError, match="tensor 'a': "):
        decode([(SPEC, len(escapes) + 1)], streams_of([0, *[255] * len(escapes), 0], escapes))


@pytest.mark.parametrize("shift", [9, 10, 59, 63, 64, 200, 255])
def test_a_shift_that_leads_out_of_its_tensor_is_an_integrity_error(shift: int) -> None:
    """Before the remainders, which would be as many bits per change, are unfolded."""
    with pytest.raises(IntegrityError, match=f"tensor 'a': a shift of {shift} "):
        decode([(SPEC, 2)], streams_of([shift, 0, 0], [], bytes(8)))


@property_test
@given(st.data())
def test_damage_anywhere_is_decoded_or_an_integrity_error(data: st.DataObject) -> None:
    table, streams = good()
    name = data.draw(st.sampled_from(sorted(streams)))
    place = data.draw(st.integers(0, len(streams[name]) - 1))
    broken = bytearray(streams[name])
    broken[place] ^= data.draw(st.integers(1, 255))
    try:
        patches = decode(table, {**streams, name: bytes(broken)})
    except IntegrityError:
        return
    for patch in patches:
        assert 0 <= int(patch.indices[0]) and int(patch.indices[-1]) < patch.spec.numel


@property_test
@given(st.data())
def test_other_content_in_good_frames_is_decoded_or_an_integrity_error(data: st.DataObject) -> None:
    table, streams = good()
    name = data.draw(st.sampled_from(sorted(streams)))
    content = bytearray(plain(streams[name]))
    for place in data.draw(st.sets(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.sampled_from([0, 1, 15, 127, 128, 240, 254, 255]))
    try:
        patches = decode(table, {**streams, name: frame(bytes(content))})
    except IntegrityError:
        return
    assert [(patch.spec, patch.indices.numel()) for patch in patches] == table
    for patch in patches:
        assert 0 <= int(patch.indices[0]) and int(patch.indices[-1]) < patch.spec.numel
        assert bool((patch.indices.diff() > 0).all())


def test_encoding_and_decoding_take_memory_for_what_changed() -> None:
    """Of a tensor of 2 GiB, of which a thousandth changes; not of its size."""
    change = change_at(list(range(0, 1 << 30, 1000)), TensorSpec("a", "BF16", (1 << 30,)))
    tracemalloc.start()
    try:
        decode(table_of([change]), encode([change]))
        assert tracemalloc.get_traced_memory()[1] < 64 * change.count
    finally:
        tracemalloc.stop()
