"""Work on each change of a version, by several threads."""

import threading

import pytest
import torch

from shared.changes import Change
from shared.types import TensorSpec
from space_vllm.in_parallel import in_parallel

DEADLINE_S = 30.0


def changes(count: int, device: str = "cpu") -> list[Change]:
    none = torch.empty(0, dtype=torch.int64, device=device)
    return [Change(TensorSpec(str(number), "I64", (1,)), none, none, none) for number in range(count)]


def test_each_change_is_worked_on_once() -> None:
    made = in_parallel(lambda change: change.spec.name, changes(50))
    assert sorted(made) == sorted(str(number) for number in range(50))
    assert in_parallel(lambda change: change.spec.name, []) == []


def test_on_the_cpu_as_many_are_worked_on_at_a_time_as_torch_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    together = threading.Barrier(3)
    in_parallel(lambda change: together.wait(DEADLINE_S), changes(6))


def test_elsewhere_the_caller_does_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    workers = in_parallel(lambda change: threading.get_ident(), changes(6, "meta"))
    assert set(workers) == {threading.get_ident()}


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
