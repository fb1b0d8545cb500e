"""Work on each change of a version, by several threads."""

import os
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest
import torch

from shared.changes import Change
from shared.types import TensorSpec
from space_vllm.in_parallel import in_parallel
from tests.torch_threads import torch_threads

DEADLINE_S = 30.0
MANY = 1 << 20


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    with torch_threads(3):
        yield


def changes(count: int, elements: int = MANY, device: str = "cpu") -> list[Change]:
    """Of so many elements each, which take little memory."""
    indices = torch.arange(elements, device=device)
    same = torch.zeros(1, dtype=torch.int64, device=device).expand(elements)
    return [Change(TensorSpec(str(number), "I64", (elements,)), indices, same, same) for number in range(count)]


def reached(change: Change) -> tuple[str, int, int]:
    return change.spec.name, int(change.indices[0]), change.count


def meeting() -> Callable[[], None]:
    """To be called at each piece: at its first, a thread waits there until all three have come."""
    together, first = threading.Barrier(3), threading.local()

    def meet() -> None:
        if not hasattr(first, "met"):
            first.met = together.wait(DEADLINE_S)

    return meet


def test_each_element_of_each_change_is_worked_on_once() -> None:
    made = sorted(in_parallel(reached, changes(5, MANY + 5)))
    for name in map(str, range(5)):
        ends = [(start, start + count) for other, start, count in made if other == name]
        assert [start for start, _ in ends] == [0, *(end for _, end in ends[:-1])] and ends[-1][1] == MANY + 5
    assert in_parallel(reached, []) == []


def test_on_the_cpu_as_many_pieces_are_worked_on_at_a_time_as_torch_has_threads() -> None:
    meet = meeting()

    def work(change: Change) -> int:
        meet()
        return threading.get_ident()

    assert len(set(in_parallel(work, changes(1, 4 * MANY)))) == 3


@pytest.mark.parametrize("given", [changes(6, device="meta"), changes(6, elements=1000)], ids=["elsewhere", "few"])
def test_otherwise_the_caller_does_one_whole_change_after_the_other(given: list[Change]) -> None:
    assert in_parallel(lambda change: threading.current_thread(), given) == [threading.current_thread()] * 6


def test_the_threads_start_none_of_torchs() -> None:
    torch.equal(torch.zeros(MANY), torch.zeros(MANY))  # torch has threads for the caller
    before = psutil.Process().num_threads()

    def work(change: Change) -> int:
        assert torch.equal(change.new.clone().to(torch.float32), change.old.to(torch.float32))
        return int(psutil.Process().num_threads())

    assert max(in_parallel(work, changes(3))) <= before + 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="there is one core")
def test_helpers_have_the_cores_of_the_process_though_their_parent_is_bound_to_one() -> None:
    cores, helpers, ended = os.sched_getaffinity(0), set[frozenset[int]](), threading.Event()
    other, meet = threading.Thread(target=ended.wait), meeting()
    other.start()
    os.sched_setaffinity(0, {min(cores)})

    def work(change: Change) -> None:
        meet()
        if threading.current_thread() is not threading.main_thread():
            helpers.add(frozenset(os.sched_getaffinity(0)))

    try:
        in_parallel(work, changes(3))
    finally:
        os.sched_setaffinity(0, cores)
        ended.set()
        other.join()
    assert helpers == {frozenset(cores)}


def test_where_threads_cannot_be_moved_they_help_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: int, cores: set[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert sum(count for _, _, count in in_parallel(reached, changes(3))) == 3 * MANY


@pytest.mark.parametrize("startable", [0, 1])
def test_where_no_more_threads_can_be_started_those_that_there_are_do_it(
    startable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = list[threading.Thread](), threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(started) == startable:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert sum(count for _, _, count in in_parallel(reached, changes(3))) == 3 * MANY
    assert len(started) == startable


@pytest.mark.parametrize("failing", [True, False], ids=["the caller", "a helper"])
def test_when_one_has_failed_it_is_raised_and_the_others_have_ended(failing: bool) -> None:
    meet = meeting()

    def work(change: Change) -> None:
        meet()
        if (threading.current_thread() is threading.main_thread()) == failing:
            raise ValueError("one failed")

    with pytest.raises(ValueError, match="one failed"):
        in_parallel(work, changes(3))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("changes")]
