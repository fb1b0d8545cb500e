"""Calls that end: each runs on a thread of its own and is waited for until its deadline.

Knows nothing of the Hub; how a call that hangs is made to end is told by the caller.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from shared.errors import BucketError

T = TypeVar("T")

_GRACE_S = 5.0
_MOST_STUCK = 4


class Overdue(Exception):
    """The call had not ended at its deadline. It has been told to end; what it brings then is not looked at."""


class Calls:
    """At most four calls may be left hanging: further ones are refused until one of those has ended."""

    def __init__(self) -> None:
        self._stuck: list[threading.Thread] = []
        self._lock = threading.Lock()

    def run(self, call: Callable[[], T], seconds: float, abort: Callable[[], None]) -> T:
        """What `call` returns or raises; Overdue after `seconds`, and a short grace in which `abort` may work."""
        self._refuse_when_stuck()
        running = _Call(call)
        try:
            if running.ended_within(seconds):
                return running.outcome.result()
            abort()
            if not running.ended_within(_GRACE_S):
                self._leave(running.thread)
        except KeyboardInterrupt:
            abort()
            raise
        raise Overdue

    def _refuse_when_stuck(self) -> None:
        with self._lock:
            self._stuck = [thread for thread in self._stuck if thread.is_alive()]
            if len(self._stuck) >= _MOST_STUCK:
                raise BucketError(
                    f"{len(self._stuck)} calls to the Hub go on after their deadlines; others are made when one of "
                    "them has ended, so try again later"
                )

    def _leave(self, thread: threading.Thread) -> None:
        with self._lock:
            self._stuck.append(thread)


class _Call(Generic[T]):
    def __init__(self, call: Callable[[], T]) -> None:
        self.outcome: Future[T] = Future()
        self.thread = threading.Thread(target=self._run, args=(call,), name="bucket-call", daemon=True)
        self.thread.start()

    def ended_within(self, seconds: float) -> bool:
        return bool(wait([self.outcome], seconds).done)

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self.outcome.set_result(call())
        except KeyboardInterrupt:  # hf_xet's, where another call's abort ended this one: signals go to the main thread
            self.outcome.set_exception(ConnectionError("it was broken off with another transfer"))
        except BaseException as error:  # it is raised again where the call is waited for
            self.outcome.set_exception(error)
