"""Calls to the Hub that move no file of a bucket: each ends by a deadline, is repeated, and fails in a sentence."""

from collections.abc import Callable, Collection
from typing import TypeVar

from shared.bucket.client import ending_in
from shared.bucket.failures import PassingError, status_of, translated
from shared.bucket.retries import Limits
from shared.errors import SyncError

T = TypeVar("T")
Translate = Callable[[Exception, str], SyncError]


def asked(
    what: str, call: Callable[[], T], limits: Limits, translate: Translate = translated, seconds: float | None = None
) -> T:
    """What `call` returns, each time within `seconds`, by default those of an answer. `what` begins the sentence."""
    limit_s = seconds or limits.answer

    def once() -> T:
        try:
            with ending_in(limit_s):
                return call()
        except TimeoutError:
            raise PassingError(f"{what}: no answer within {round(limit_s, 1):g} s") from None
        except Exception as error:  # huggingface_hub checks no answer: one of another shape raises anything in it
            raise translate(error, what) from None

    return limits.retried(once)


def seen(call: Callable[[], T], unseen: Collection[int] = (404,)) -> T | None:
    """None when there is no such thing, or the token may not see it: where the Hub answers a status of `unseen`."""
    try:
        return call()
    except Exception as error:
        if status_of(error) in unseen:
            return None
        raise


def made_once(make: Callable[[], object]) -> Callable[[], None]:
    """`make`, to be repeated: that it is there already (409) means that an attempt was made whose answer was lost."""
    attempts = 0

    def attempt() -> None:
        nonlocal attempts
        attempts += 1
        try:
            make()
        except Exception as error:
            if attempts == 1 or status_of(error) != 409:
                raise

    return attempt
