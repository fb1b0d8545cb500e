"""What goes wrong between here and the Hub, in sentences, and whether it may pass by itself.

Knows the errors of huggingface_hub and hf_xet, which says a status or an errno only in the text of its errors.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import hf_xet
import httpx2
from huggingface_hub.errors import BucketBatchError, EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils._http import parse_ratelimit_headers

from shared.errors import BucketError, MissingFileError

# ValueError and KeyError: an answer that is no JSON, or not the JSON it should be.
FOREIGN = (httpx2.HTTPError, EntryNotFoundError, OSError, RuntimeError, ValueError, KeyError)

_REMEDIES = {
    401: "the token is missing or not valid; set HF_TOKEN",
    402: "the account's plan does not cover it",
    403: "the token may not do this; it needs access to this bucket",
    404: "there is no such bucket, or the token may not see it",
    409: "it conflicts with the state of the bucket",
    429: "too many requests; try again later",
}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO)
_XET_ERRNO = re.compile(r"\(os error (\d+)\)")
_XET_STATUS = re.compile(r"HTTP status \w+ error \((\d{3})")
_SECRETS = re.compile(r"(?<=\?)\S+|\bhf_\w+|(?<=Bearer )\S+")


class PassingError(BucketError):
    """What may pass by itself. `wait_s` is how long the Hub asks to be left alone, 0 where it does not say."""

    def __init__(self, sentence: str, wait_s: float = 0.0) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Foreign errors become BucketErrors that begin with what was tried; a deadline's TimeoutError is let through."""
    try:
        yield
    except TimeoutError:
        raise
    except FOREIGN as error:
        raise translated(error, what) from error


def translated(error: Exception, what: str) -> BucketError:
    """A PassingError where the error may pass by itself."""
    if isinstance(error, OfflineModeIsEnabled):
        return BucketError(f"{what}: HF_HUB_OFFLINE is set; unset it to use a bucket on the Hub")
    if isinstance(error, EntryNotFoundError):
        return MissingFileError(f"{what}: there is no such file")
    if isinstance(error, BucketBatchError):
        reasons = "; ".join(str(failure.get("error")) for failure in error.failures) or "no reason given"
        return PassingError(f"{what}: the Hub could not do it: {plain(reasons)}")
    status = status_of(error)
    if status is not None:
        return _refused(what, status, _asked_wait(error))
    if isinstance(error, OSError) and not isinstance(error, (httpx2.HTTPError, ConnectionError)):
        return BucketError(f"{what}: {plain(str(error))}")  # of this machine, such as a file that is gone
    found = _XET_ERRNO.search(str(error))
    if found and int(found[1]) in _DISK:
        return BucketError(
            f"{what}: {os.strerror(int(found[1]))} (this machine); free some space, or use another disk"
        )
    return PassingError(f"{what}: {plain(str(error)) or type(error).__name__}")


def status_of(error: Exception) -> int | None:
    """The HTTP status that an error of huggingface_hub or hf_xet is about."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code
    if isinstance(error, hf_xet.XetObjectNotFoundError):
        return 404
    found = _XET_STATUS.search(str(error))
    return int(found[1]) if found else None


def plain(text: str) -> str:
    """A foreign message on one line, without what could be a key: tokens, and the queries of signed addresses."""
    return _SECRETS.sub("...", " ".join(text.split()))


def _refused(what: str, status: int, wait_s: float) -> BucketError:
    remedy = _REMEDIES.get(status, "the Hub does not answer as it should; try again later")
    sentence = f"{what}: HTTP {status}: {remedy}"
    if status in (408, 425, 429) or status >= 500:
        return PassingError(sentence + (f", in {wait_s:.0f} s" if wait_s else ""), wait_s)
    return BucketError(sentence)


def _asked_wait(error: Exception) -> float:
    """Seconds, from the two headers with which the Hub says so."""
    if not isinstance(error, HfHubHTTPError):
        return 0.0
    limit = parse_ratelimit_headers(error.response.headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    stated = error.response.headers.get("Retry-After", "")
    return float(stated) if stated.isdigit() else 0.0
