"""Reading, writing and counting through a map agree with a loader that was really run, bit for bit."""

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared import fingerprint
from shared.bits import DTYPES, bits, spec_of
from shared.changes import Change
from shared.errors import IntegrityError
from space_vllm import live
from space_vllm.live import LiveTensor
from space_vllm.tracing import trace
from tests.shared.weights import SPECIAL, from_patterns, property_test

SENTINEL = 0x55


def never() -> bool:
    return False


class Fused(torch.nn.Module):
    """Takes `a` [3, 4] and `b` [2, 4] as rows of one parameter, `c` [6] as two columns of another."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.zeros(6, 4, dtype=dtype), requires_grad=False)
        self.columns = torch.nn.Parameter(torch.zeros(3, 5, dtype=dtype), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        places = {"a": self.rows[:3], "b": self.rows[3:5], "c": self.columns[:, 1:3]}
        for name, tensor in weights:
            places[name].copy_(tensor.view(places[name].shape))
        return {"rows", "columns"}


@dataclass
class Layout:
    """A tensor cut along one dimension; each part goes, permuted, to a strided view of memory of its own."""

    cuts: list[int]
    dim: int
    order: tuple[int, ...]
    parts: list[torch.Tensor]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        ((_, tensor),) = weights
        for start, stop, part in zip(self.cuts, self.cuts[1:], self.parts, strict=False):
            part.copy_(tensor.narrow(self.dim, start, stop - start).permute(self.order))
        return set()

    def outside(self) -> list[torch.Tensor]:
        """The bytes of all memory with those of the tensor's elements set to zero."""
        found = []
        for part in self.parts:
            whole = torch.empty(0, dtype=part.dtype).set_(part.untyped_storage()).clone()
            whole.as_strided(part.shape, part.stride(), part.storage_offset()).zero_()
            found.append(bits(whole))
        return found


@st.composite
def layouts(draw: st.DrawFn, live_dtype: torch.dtype, shape: tuple[int, ...]) -> Layout:
    dim = draw(st.integers(0, len(shape) - 1))
    cuts = sorted({0, shape[dim], *draw(st.sets(st.integers(0, shape[dim]), max_size=2))})
    order = tuple(draw(st.permutations(range(len(shape)))))
    parts = []
    for start, stop in zip(cuts, cuts[1:], strict=False):
        sizes = [(*shape[:dim], stop - start, *shape[dim + 1 :])[place] for place in order]
        steps = [draw(st.integers(1, 3)) for _ in sizes]
        margins = [draw(st.integers(0, 2)) for _ in sizes]
        room = [size * step + margin for size, step, margin in zip(sizes, steps, margins, strict=True)]
        memory = torch.full((torch.Size(room).numel() * live_dtype.itemsize,), SENTINEL, dtype=torch.uint8)
        part = memory.view(live_dtype).view(room)
        for place, (size, step, margin) in enumerate(zip(sizes, steps, margins, strict=True)):
            part = part.narrow(place, margin, size * step).unflatten(place, (size, step)).select(place + 1, 0)
        parts.append(part)
    return Layout(cuts, dim, order, parts)


def random_tensor(wire: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any bits, and every third element one of the special ones."""
    size, count = DTYPES[wire].itemsize, torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(seed)
    patterns = [int(torch.randint(0, 1 << min(8 * size, 62), (), generator=generator)) for _ in range(count)]
    for place in range(0, count, 3):
        patterns[place] = SPECIAL[size][(seed + place) % len(SPECIAL[size])]
    return from_patterns(wire, shape, [pattern & 1 for pattern in patterns] if wire == "BOOL" else patterns)


SAME = [(name, dtype) for name, dtype in DTYPES.items()]


@property_test
@given(
    st.sampled_from([*SAME, ("BF16", torch.float32)]),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    st.data(),
)
def test_what_is_read_written_and_counted_through_a_map_is_what_the_loader_placed(
    dtypes: tuple[str, torch.dtype], shape: tuple[int, ...], data: st.DataObject
) -> None:
    wire, live_dtype = dtypes
    layout = data.draw(layouts(live_dtype, shape))
    tensor = random_tensor(wire, shape, data.draw(st.integers(0, 99)))
    found = trace(layout.load_weights, "t", tensor)
    assert found.complete
    layout.load_weights([("t", tensor)])
    placed, spec, around = (
        LiveTensor(spec_of("t", tensor), tuple(found.regions)),
        spec_of("t", tensor),
        layout.outside(),
    )
    assert torch.equal(placed.whole(), bits(tensor))

    some = sorted(data.draw(st.sets(st.integers(0, tensor.numel() - 1))))
    indices = torch.tensor(some, dtype=torch.int64)
    assert torch.equal(placed.read(indices), bits(tensor)[indices])

    new = bits(random_tensor(wire, shape, data.draw(st.integers(100, 199))))[indices]
    placed.write(Change(spec, indices, bits(tensor)[indices], new))
    bits(tensor)[indices] = new
    assert torch.equal(placed.whole(), bits(tensor))
    assert torch.equal(placed.read(indices), new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "_CHUNK", data.draw(st.integers(1, 7)))
        assert placed.count(never) == fingerprint.tensor(spec, bits(tensor))
    assert all(torch.equal(*pair) for pair in zip(layout.outside(), around, strict=True))


def placed(model: Fused, tensor: torch.Tensor, name: str) -> LiveTensor:
    found = trace(model.load_weights, name, tensor)
    model.load_weights([(name, tensor)])
    return LiveTensor(spec_of(name, tensor), tuple(found.regions))


def test_tensors_that_share_a_parameter_do_not_touch_each_other() -> None:
    model = Fused(torch.bfloat16)
    tensors = {name: torch.ones(size).to(torch.bfloat16) for name, size in (("a", 12), ("b", 8), ("c", 6))}
    places = {name: placed(model, tensor, name) for name, tensor in tensors.items()}
    indices = torch.tensor([0, 7])
    new = bits(torch.tensor([2.0, 3.0]).to(torch.bfloat16))
    places["b"].write(Change(places["b"].spec, indices, places["b"].read(indices), new))
    assert model.rows[3:5].view(-1).tolist() == [2, 1, 1, 1, 1, 1, 1, 3]
    assert model.rows[:3].eq(1).all() and not model.rows[5:].any()
    places["c"].write(Change(places["c"].spec, indices[:1] + 5, new[:1], new[:1]))
    assert model.columns.tolist() == [[0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 2, 0, 0]]


def test_parts_in_parameters_of_different_dtypes_are_one_tensor() -> None:
    narrow, wide = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)
    wire = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(torch.bfloat16)

    def load(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for _, tensor in weights:
            narrow.copy_(tensor[:2])
            wide.copy_(tensor[2:])
        return set()

    found = LiveTensor(spec_of("t", wire), tuple(trace(load, "t", wire).regions))
    load([("t", wire)])
    assert torch.equal(found.read(torch.arange(4)), bits(wire))
    wide[1] = 4.0001
    with pytest.raises(IntegrityError, match="no BF16 values"):
        found.read(torch.arange(4))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (0,), (2, 0, 3)])
def test_one_element_and_none_are_read_and_counted(shape: tuple[int, ...]) -> None:
    memory, wire = torch.full(shape, 7.0), torch.full(shape, 5.0).to(torch.bfloat16)

    def load(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for _, tensor in weights:
            memory.copy_(tensor)
        return set()

    found = LiveTensor(spec_of("t", wire), tuple(trace(load, "t", wire).regions))
    load([("t", wire)])
    indices = torch.arange(wire.numel())
    assert torch.equal(found.whole(), bits(wire))
    assert torch.equal(found.read(indices), bits(wire))
    assert found.count(never) == fingerprint.tensor(found.spec, bits(wire))
    found.write(Change(found.spec, indices, bits(wire), bits(torch.full(shape, 6.0).to(torch.bfloat16))))
    assert memory.eq(6).all()


def test_a_live_value_that_was_never_published_is_an_integrity_error() -> None:
    model = Fused(torch.float32)
    found = placed(model, torch.ones(8).to(torch.bfloat16), "b")
    model.rows[4, 1] = 1.0001
    for look in (found.whole, lambda: found.read(torch.tensor([5])), lambda: found.count(never)):
        with pytest.raises(IntegrityError, match="holds torch.float32 values that are no BF16 values"):
            look()
    assert found.read(torch.tensor([4, 6])).tolist() == [0x3F80, 0x3F80]


def test_counting_stops_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_CHUNK", 3)
    found = placed(Fused(torch.float32), torch.ones(12), "a")
    answers = iter([False, False, True])
    assert found.count(lambda: next(answers)) is None
    assert list(answers) == []
    assert found.count(never) == fingerprint.tensor(found.spec, bits(torch.ones(12)))
