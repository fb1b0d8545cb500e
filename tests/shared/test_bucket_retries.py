from collections.abc import Callable

import pytest

from shared.bucket.failures import PassingError
from shared.bucket.retries import Limits
from shared.errors import BucketError, MissingFileError

QUICK = Limits(listing=0.05, attempts=3, first_wait=0.001, longest_wait=0.01)


def failing(*errors: Exception) -> tuple[Callable[[], str], list[int]]:
    """A call that raises these, one after the other, and then returns; and a list that grows with each call."""
    left = list(errors)
    calls: list[int] = []

    def call() -> str:
        calls.append(len(calls))
        if left:
            raise left.pop(0)
        return "done"

    return call, calls


def test_what_may_pass_is_called_again_until_it_does() -> None:
    call, calls = failing(PassingError("one"), PassingError("two"))
    assert QUICK.retried(call) == "done"
    assert len(calls) == 3


def test_the_last_failure_is_told_with_the_number_of_attempts() -> None:
    call, calls = failing(*[PassingError(f"number {number}", 0.002) for number in range(9)])
    with pytest.raises(BucketError, match=r"number 2 \(3 attempts\)"):
        QUICK.retried(call)
    assert len(calls) == 3


@pytest.mark.parametrize("error", [BucketError("no"), MissingFileError("no"), PassingError("no", wait_s=0.02)])
def test_what_will_not_pass_in_time_is_called_once(error: BucketError) -> None:
    call, calls = failing(error)
    with pytest.raises(BucketError, match="no"):
        QUICK.retried(call)
    assert len(calls) == 1


def test_no_attempt_starts_after_the_time_for_retrying() -> None:
    call, calls = failing(*[PassingError("away")] * 100)
    with pytest.raises(BucketError, match="away"):
        Limits(attempts=1000, retrying=0.2, first_wait=0.01, longest_wait=0.01).retried(call)
    assert 1 < len(calls) < 100


def test_a_listing_is_looked_at_until_its_time_is_up() -> None:
    call, calls = failing(*[PassingError("not listed")] * 4)
    Limits(listing=20.0, first_wait=0.001).repeated_until_listed(call)
    assert len(calls) == 5
    with pytest.raises(PassingError, match="^not listed$"):
        QUICK.repeated_until_listed(failing(*[PassingError("not listed")] * 1000)[0])


def test_a_transfer_has_time_for_its_bytes() -> None:
    assert Limits(transfer=60, bytes_per_second=500e3).transfer_of(1_200_000_000) == 60 + 2400
