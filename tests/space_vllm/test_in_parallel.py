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


def test_what_is_made_comes_in_the_order_of_the_changes() -> None:
    assert in_parallel(lambda change: change.spec.name, changes(50)) == [str(number) for number in range(50)]
    assert in_parallel(lambda change: change.spec.name, []) == []


def test_on_the_cpu_as_many_are_worked_on_at_a_time_as_torch_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    together = threading.Barrier(3)
    in_parallel(lambda change: together.wait(DEADLINE_S), changes(6))


def test_elsewhere_the_caller_does_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    workers = in_parallel(lambda change: threading.get_ident(), changes(6, "meta"))
    assert set(workers) == {threading.get_ident()}


def test_once_one_has_failed_nothing_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    begun, failed, ended = threading.Event(), threading.Event(), list[str]()

    def work(change: Change) -> None:
        if change.spec.name == "0":
            assert begun.wait(DEADLINE_S)
            failed.set()
            raise ValueError("the first")
        begun.set()
        assert failed.wait(DEADLINE_S)
        ended.append(change.spec.name)

    with pytest.raises(ValueError, match="the first"):
        in_parallel(work, changes(3))
    assert "1" in ended, "it had begun, so it was waited for"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("changes")]
