import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shared.bits import bits
from shared.changes import Change
from shared.errors import IntegrityError
from shared.packed import decode, encode
from shared.types import TensorSpec
from tests.shared.weights import Weights, changes_between, property_test, weights_and_change

Table = list[tuple[TensorSpec, int]]
Streams = dict[str, bytes]

SPEC = TensorSpec("a", "BF16", (1000,))


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
    "indices", [[254], [255], [256], [65535], [65536], [(1 << 31) - 1, 1 << 31], [(1 << 32) + 254], [(1 << 32) + 300]]
)
def test_gaps_at_the_edges_survive(indices: list[int]) -> None:
    change = change_at(indices, TensorSpec("huge", "BF16", (1 << 20, 1 << 20)))
    streams = encode([change])
    assert ("escapes_8" in streams) == (indices[0] - 255 >= 1 << 32)
    assert decode(table_of([change]), streams)[0].indices.tolist() == indices


def test_a_step_of_one_takes_less_than_two_bytes_per_change() -> None:
    places = torch.randperm(100_000, generator=torch.Generator().manual_seed(0))[:1000].sort().values.tolist()
    streams = encode([change_at(places, TensorSpec("a", "BF16", (100_000,)))])
    assert sum(map(len, streams.values())) < 2000


def test_nothing_changed_is_no_stream() -> None:
    assert encode([]) == {}
    assert decode([], {}) == []


def good() -> tuple[Table, Streams]:
    changes = [change_at([3, 300, 999]), change_at([0], TensorSpec("b", "BF16", (1,)))]
    return table_of(changes), encode(changes)


@pytest.mark.parametrize("name", ["gaps", "escapes_4", "differences_2"])
def test_a_missing_stream_is_an_integrity_error(name: str) -> None:
    table, streams = good()
    del streams[name]
    with pytest.raises(IntegrityError, match=name):
        decode(table, streams)


@pytest.mark.parametrize("name", ["differences_4", "other", "escapes_4"])
def test_a_stream_too_many_is_an_integrity_error(name: str) -> None:
    table, streams = good()
    streams |= {"escapes_8": frame(b"\0" * 16)} if name == "escapes_4" else {name: frame(b"\0")}
    with pytest.raises(IntegrityError):
        decode(table, streams)


@pytest.mark.parametrize("name", ["gaps", "escapes_4", "differences_2"])
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


@pytest.mark.parametrize("gaps", [[254, 254, 254, 254], [0, 0, 255, 0]])
def test_an_index_outside_of_its_tensor_is_an_integrity_error(gaps: list[int]) -> None:
    table = [(TensorSpec("a", "BF16", (1000,)), 4)]
    streams = {
        "gaps": frame(bytes(gaps)),
        "escapes_4": frame((1000).to_bytes(4, "little")),
        "differences_2": frame(b"\0" * 8),
    }
    if 255 not in gaps:
        del streams["escapes_4"]
    with pytest.raises(IntegrityError, match="tensor 'a': "):
        decode(table, streams)


@pytest.mark.parametrize(
    "escapes", [[(1 << 64) - 256], [(1 << 63) - 256], [(1 << 63) - 1], [(1 << 62), (1 << 62), (1 << 62), (1 << 62)]]
)
def test_gaps_that_wrap_around_are_an_integrity_error(escapes: list[int]) -> None:
    count = len(escapes) + 1
    planes = np.array(escapes, dtype="<u8").view(np.uint8).reshape(-1, 8).T.tobytes()
    streams = {
        "gaps": frame(bytes([255] * len(escapes) + [0])),
        "escapes_8": frame(planes),
        "differences_2": frame(b"\0" * 2 * count),
    }
    with pytest.raises(IntegrityError, match="tensor 'a': "):
        decode([(SPEC, count)], streams)


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
