"""While a loader is watched nothing is written, and what it would have copied is known element by element."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from shared.bits import bits
from space_vllm.tracing import Region, Trace, Witness, storage_of, trace

Write = Callable[[torch.Tensor], Any]


def traced(live: torch.Tensor, wire: torch.Tensor, write: Write) -> Trace:
    """What a loader that calls `write` with the wire tensor does to `live`. Fails when either was written to."""
    before, sent = bits(live).clone(), bits(wire).clone()

    def load(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for _, tensor in weights:
            write(tensor)
        return {"live"}

    found = trace(load, "wire", wire)
    assert torch.equal(bits(live), before) and torch.equal(bits(wire), sent)
    assert found.loaded == {"live"}
    return found


def copied(found: Trace, wire: torch.Tensor) -> torch.Tensor:
    """What the regions say that the loader does to the memory they are in, in zeros."""
    flat, memory = wire.reshape(-1), torch.zeros_like(found.regions[0].memory)
    for region in found.regions:
        assert storage_of(region.memory) == storage_of(found.regions[0].memory)
        source = flat.as_strided(region.shape, region.wire_strides, region.wire_offset)
        memory.as_strided(region.shape, region.live_strides, region.live_offset).copy_(source)
    return memory


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def test_rows_of_a_fused_parameter_are_one_run() -> None:
    live = torch.zeros(7, 4)
    found = traced(live, numbers(3, 4), lambda wire: live[2:5].copy_(wire))
    (region,) = found.regions
    assert (region.shape, region.wire_strides, region.live_strides) == ((12,), (1,), (1,))
    assert (region.wire_offset, region.live_offset, region.numel) == (0, 8, 12)
    assert found.complete
    assert region.live().data_ptr() == live[2].data_ptr()


def test_a_part_of_the_columns_goes_to_columns() -> None:
    live, wire = torch.zeros(3, 8), numbers(3, 5)
    found = traced(live, wire, lambda wire: live[:, 4:7].copy_(wire[:, 1:4]))
    assert found.regions == [Region(found.regions[0].memory, (3, 3), (5, 1), 1, (8, 1), 4)]
    live[:, 4:7] = wire[:, 1:4]
    assert torch.equal(copied(found, wire), live.view(-1))


def test_a_transposed_copy_keeps_its_strides() -> None:
    live, wire = torch.zeros(4, 3), numbers(3, 4)
    found = traced(live, wire, lambda wire: live.copy_(wire.t()))
    assert torch.equal(copied(found, wire).view(4, 3), wire.t())


def test_views_of_views_of_both_sides_are_followed() -> None:
    live, wire = torch.zeros(2, 3, 4).transpose(0, 2), numbers(6, 4)
    found = traced(live, wire, lambda wire: live[1:3].copy_(wire.view(3, 2, 4).permute(2, 0, 1)[2:]))
    live[1:3] = wire.view(3, 2, 4).permute(2, 0, 1)[2:]
    assert found.complete
    assert torch.equal(copied(found, wire), live.transpose(0, 2).reshape(-1))


def test_a_wire_tensor_that_is_itself_a_view_counts_from_its_own_start() -> None:
    live, wire = torch.zeros(4), numbers(3, 4)[1]
    found = traced(live, wire, lambda wire: live[1:].copy_(wire[1:]))
    assert (found.regions[0].wire_offset, found.regions[0].live_offset) == (1, 1)


def test_one_tensor_may_go_to_two_parameters_and_in_several_parts() -> None:
    one, other = torch.zeros(4), torch.zeros(2)

    def write(wire: torch.Tensor) -> None:
        one[:2].copy_(wire[:2])
        one[2:].copy_(wire[2:])
        other.copy_(wire[1:3])

    found = traced(one, numbers(4), write)
    assert [(storage_of(r.memory) == storage_of(one), r.wire_offset, r.live_offset) for r in found.regions] == [
        (True, 0, 0),
        (True, 2, 2),
        (False, 1, 0),
    ]
    assert not other.any()


def test_a_broadcasting_copy_reads_its_source_with_a_stride_of_zero() -> None:
    live, wire = torch.zeros(3, 4), numbers(4)
    found = traced(live, wire, lambda wire: live.copy_(wire))
    assert [(r.shape, r.wire_strides) for r in found.regions] == [((3, 4), (0, 1))]
    found = traced(live, numbers(1), lambda wire: live.fill_(wire[0]))
    assert [(r.shape, r.wire_strides) for r in found.regions] == [((12,), (0,))]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_element_is_one_element_in_any_shape(shape: tuple[int, ...]) -> None:
    live = torch.zeros(2, 3)
    found = traced(live, numbers(*shape), lambda wire: live[1, 2].copy_(wire.view(())))
    assert [(r.shape, r.wire_strides, r.live_strides, r.live_offset) for r in found.regions] == [((1,), (1,), (1,), 5)]


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_a_tensor_without_elements_is_a_copy_without_elements(shape: tuple[int, ...]) -> None:
    live, other = torch.empty(shape), torch.empty(shape)

    def write(wire: torch.Tensor) -> None:
        torch.empty(shape).copy_(torch.zeros(shape))  # memory of the loader's own, of which no trace is left
        live.copy_(wire)

    found = traced(live, torch.empty(shape), write)
    (region,) = found.regions
    assert (region.numel, found.complete) == (0, True)
    assert storage_of(region.memory) == storage_of(live) != storage_of(other)


def test_dimensions_of_one_element_make_no_difference() -> None:
    live = torch.zeros(5, 1, 4)
    found = traced(live, numbers(2, 4), lambda wire: live[1:3].copy_(wire.unsqueeze(1)))
    assert [(r.shape, r.live_offset) for r in found.regions] == [((8,), 4)]


def test_a_copy_into_a_wider_dtype_is_a_copy() -> None:
    live = torch.zeros(4)
    found = traced(live, numbers(4).to(torch.bfloat16), lambda wire: live.copy_(wire))
    assert (found.complete, found.regions[0].memory.dtype) == (True, torch.float32)


@pytest.mark.parametrize(
    "fill", [lambda rows: rows.fill_(0), lambda rows: rows.zero_(), lambda rows: rows.fill_(torch.tensor(0.0))]
)
def test_padding_that_a_loader_fills_stays_as_it_is(fill: Write) -> None:
    live = torch.ones(5, 4)

    def write(wire: torch.Tensor) -> None:
        live[:3].copy_(wire)
        fill(live[3:])
        live[4] = 0

    found = traced(live, numbers(3, 4), write)
    assert ([r.numel for r in found.regions], found.complete) == ([12], True)


LIVE = torch.ones(4)

COMPUTED: dict[str, Write] = {
    "add_": lambda wire: LIVE.add_(wire),
    "mul_": lambda wire: LIVE.mul_(wire),
    "index_put_": lambda wire: LIVE.index_put_((torch.arange(4),), wire),
    "a mask": lambda wire: LIVE.__setitem__(wire > 2, 7.0),
    "a scatter": lambda wire: LIVE.scatter_(0, torch.arange(4), wire),
    "out=": lambda wire: torch.add(wire, 1, out=LIVE),
    "_foreach_copy_": lambda wire: torch._foreach_copy_([LIVE[:2], LIVE[2:]], [wire[:2], wire[2:]]),
    "a random op": lambda wire: LIVE.uniform_(),
    "a computed temporary": lambda wire: LIVE.copy_(wire + 1),
    "a cast temporary": lambda wire: LIVE.copy_(wire.to(torch.float64)),
    "a copied temporary": lambda wire: LIVE.copy_(torch.empty(4).copy_(wire)),
    "its own memory": lambda wire: LIVE.copy_(LIVE.flip(0)),
    "the wire tensor, changed first": lambda wire: LIVE.copy_(wire.mul_(2)),
    "the wire's bits as numbers": lambda wire: LIVE.copy_(wire.view(torch.int32)),
    "the wire's bits as one number": lambda wire: LIVE.fill_(wire.view(torch.int32)[0]),
    "two outputs": lambda wire: torch.max(wire.view(2, 2), 1, out=(LIVE[:2], torch.empty(0, dtype=torch.int64))),
    "the value of an element": lambda wire: LIVE.fill_(wire[1].item()),
    "a computed fill": lambda wire: LIVE.fill_(wire.max()),
    "a value read and assigned": lambda wire: LIVE[:2].__setitem__(slice(None), wire.max().item()),
}


@pytest.mark.parametrize("write", COMPUTED.values(), ids=COMPUTED.keys())
def test_what_cannot_be_told_from_the_tensors_elements_is_not_complete(write: Write) -> None:
    assert not traced(LIVE, numbers(4), write).complete


def test_a_loader_may_write_to_memory_that_it_made() -> None:
    live, made = torch.zeros(4), []

    def write(wire: torch.Tensor) -> None:
        made.append(torch.zeros(4))
        made[0].copy_(wire).mul_(2)
        live.copy_(wire)

    found = traced(live, numbers(4), write)
    assert made[0].tolist() == [2, 4, 6, 8]
    assert ([storage_of(r.memory) for r in found.regions], found.complete) == ([storage_of(live)], True)


def test_what_a_loader_raises_comes_out_and_watching_ends() -> None:
    live = torch.zeros(4)

    def write(wire: torch.Tensor) -> None:
        live.copy_(wire)
        raise ValueError("no such parameter")

    with pytest.raises(ValueError, match="no such parameter"):
        traced(live, numbers(4), write)
    assert not live.any()
    live.copy_(numbers(4))
    assert live.tolist() == [1, 2, 3, 4]


def test_a_loader_that_takes_nothing_leaves_an_empty_trace() -> None:
    assert trace(lambda weights: set(), "wire", numbers(4)) == Trace()


def test_a_parameter_that_wants_gradients_is_traced_too() -> None:
    live = torch.nn.Parameter(torch.zeros(4))
    found = traced(live, numbers(4), lambda wire: live.copy_(wire))
    assert found.complete and storage_of(found.regions[0].memory) == storage_of(live)


def test_a_witness_counts_what_is_taken_of_each_tensor_and_stops_nothing() -> None:
    live, tensors = torch.zeros(3, 4), {"whole": numbers(4), "part": numbers(3, 4), "none": numbers(2)}
    with Witness(tensors) as witness:
        live[0].copy_(tensors["whole"])
        live[1, :2].copy_(tensors["part"][1, 2:])
        live[2].copy_(tensors["part"][2])
        torch.empty(4, device="meta").copy_(tensors["whole"])
        live[2].add_(1)
    assert witness.copied == {"whole": 4, "part": 6, "none": 0}
    assert live.tolist() == [[1, 2, 3, 4], [7, 8, 0, 0], [10, 11, 12, 13]]
