import threading

import pytest

from shared.bucket import deadline
from shared.bucket.deadline import Calls, Overdue
from shared.errors import BucketError


def nothing() -> None:
    pass


def threads() -> set[threading.Thread]:
    """Those of calls, of other tests too."""
    return {thread for thread in threading.enumerate() if thread.name == "bucket-call"}


def test_a_call_brings_what_it_returns_or_raises() -> None:
    assert Calls().run(lambda: 7, 10, nothing) == 7
    with pytest.raises(ValueError, match="no_number"):
        Calls().run(lambda: int("no_number"), 10, nothing)


def test_a_call_that_hangs_is_told_to_end_and_its_thread_is_gone() -> None:
    told = threading.Event()
    before = threads()
    with pytest.raises(Overdue):
        Calls().run(lambda: told.wait(60), 0.01, told.set)
    assert threads() <= before


def test_what_an_overdue_call_brings_in_the_end_is_not_looked_at() -> None:
    told = threading.Event()

    def late() -> None:
        told.wait(60)
        raise RuntimeError("aborted")

    with pytest.raises(Overdue):
        Calls().run(late, 0.01, told.set)


def test_an_interrupt_ends_the_call_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deadline, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Calls().run(lambda: told.wait(60), 60, told.set)
    assert told.is_set()


def test_only_so_many_calls_are_left_hanging_and_others_go_on_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "_GRACE_S", 0.01)
    calls, ended = Calls(), threading.Event()
    before = threads()
    for _ in range(4):
        with pytest.raises(Overdue):
            calls.run(lambda: ended.wait(60), 0.01, nothing)
    for _ in range(3):
        with pytest.raises(BucketError, match="4 calls to the Hub go on after their deadlines; others are made when"):
            calls.run(lambda: 7, 10, nothing)
    assert len(threads() - before) == 4
    ended.set()
    for thread in threads() - before:
        thread.join(10)
    assert calls.run(lambda: 7, 10, nothing) == 7


def test_what_hf_xet_raises_where_its_session_was_aborted_is_no_interrupt_of_the_user() -> None:
    def aborted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(ConnectionError, match="it was broken off with another transfer"):
        Calls().run(aborted, 20.0, lambda: None)
