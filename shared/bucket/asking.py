"""Calls to the Hub that move no file of a bucket: each ends by a deadline, is repeated, and fails in a sentence."""

from collections.abc import Callable
from typing import TypeVar

from shared.bucket.client import ending_in
from shared.bucket.failures import PassingError, translated
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
