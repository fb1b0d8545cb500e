"""How long calls to the Hub may take, and how often what may pass by itself is tried again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import stamina

from shared.bucket.failures import PassingError

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """In seconds, where nothing else is said."""

    answer: float = 20.0  # a call that moves no file
    transfer: float = 30.0  # one that does, beside what its bytes take
    bytes_per_second: float = 500e3  # a slower transfer is given up
    listing: float = 20.0  # until a file that was uploaded is listed
    attempts: int = 4
    retrying: float = 120.0  # from the first attempt on, in which another one may start
    first_wait: float = 0.5
    longest_wait: float = 30.0  # a Hub that asks for more is not waited for

    def transfer_of(self, size: int) -> float:
        return self.transfer + size / self.bytes_per_second

    def retried(self, call: Callable[[], T]) -> T:
        """What `call` returns; it is called again after a PassingError, within the limits."""
        number = 0

        def attempt() -> T:
            nonlocal number
            number += 1
            return call()

        retrying = stamina.RetryingCaller(
            attempts=self.attempts,
            timeout=self.retrying,
            wait_initial=self.first_wait,
            wait_max=self.longest_wait,
            wait_jitter=self.first_wait,
        )
        try:
            return retrying(self._wait_after, attempt)
        except PassingError as error:
            tried = f" ({number} attempts)" if number > 1 else ""
            raise PassingError(f"{error}{tried}", error.wait_s) from error

    def repeated_until_listed(self, look: Callable[[], object]) -> None:
        """Call `look` until it raises no PassingError; the last one is let through when the time is up."""
        retrying = stamina.RetryingCaller(
            attempts=None,
            timeout=self.listing,
            wait_initial=min(0.2, self.first_wait),
            wait_max=2.0,
            wait_jitter=0.0,
        )
        retrying(PassingError, look)

    def _wait_after(self, error: Exception) -> bool | float:
        if not isinstance(error, PassingError) or error.wait_s > self.longest_wait:
            return False
        return error.wait_s or True


PATIENT = Limits()
