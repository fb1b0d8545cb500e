"""Work on each change of a version, by several threads."""

import os
import threading

import pytest
import torch

from shared.changes import Change
from shared.types import TensorSpec
from space_vllm.in_parallel import in_parallel

DEADLINE_S = 30.0
MANY = 1 << 20


def changes(count: int, elements: int = MANY, device: str = "cpu") -> list[Change]:
    """Of so many elements each, which take no memory."""
    same = torch.zeros(1, dtype=torch.int64, device=device).expand(elements)
    return [Change(TensorSpec(str(number), "I64", (elements,)), same, same, same) for number in range(count)]


def test_each_change_is_worked_on_once() -> None:
    made = in_parallel(lambda change: change.spec.name, changes(50))
    assert sorted(made) == sorted(str(number) for number in range(50))
    assert in_parallel(lambda change: change.spec.name, []) == []


def test_on_the_cpu_as_many_are_worked_on_at_a_time_as_torch_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    together = threading.Barrier(3)
    in_parallel(lambda change: together.wait(DEADLINE_S), changes(6))


@pytest.mark.parametrize("given", [changes(6, device="meta"), changes(6, elements=10)], ids=["elsewhere", "few"])
def test_otherwise_the_caller_does_one_after_the_other(given: list[Change], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert set(in_parallel(lambda change: threading.get_ident(), given)) == {threading.get_ident()}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="there is one core")
def test_the_threads_have_the_cores_of_the_process_though_their_parent_is_bound_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    cores = os.sched_getaffinity(0)
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert in_parallel(lambda change: os.sched_getaffinity(0), changes(2)) == [cores, cores]
    finally:
        os.sched_setaffinity(0, cores)
        ended.set()
        other.join()


def test_when_one_has_failed_the_others_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    begun, failed, ended = threading.Event(), threading.Event(), set[str]()

    def work(change: Change) -> None:
        if change.spec.name == "0":
            assert begun.wait(DEADLINE_S)
            failed.set()
            raise ValueError("the first")
        begun.set()
        assert failed.wait(DEADLINE_S)
        ended.add(change.spec.name)

    with pytest.raises(ValueError, match="the first"):
        in_parallel(work, changes(3))
    assert ended == {"1", "2"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("changes")]
