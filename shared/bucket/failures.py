"""What goes wrong between here and the Hub, in sentences, and whether it may pass by itself.

Knows the errors of huggingface_hub and hf_xet, which says a status or an errno only in the text of its errors. None of
them is kept as the cause of another: they may hold what was sent, the token too.
"""

import errno
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import hf_xet
import httpx2
from huggingface_hub.errors import BucketBatchError, HfHubHTTPError, OfflineModeIsEnabled

from shared import strict_json
from shared.errors import BucketError, MissingFileError

REMEDIES = {
    400: "the Hub does not take such a request; this huggingface_hub may be too old for it",
    401: "the token is missing or not valid; set HF_TOKEN",
    402: (
        "the account's plan does not cover it; see https://huggingface.co/pricing for another, and "
        "https://huggingface.co/settings/billing for what is not paid"
    ),
    403: "the token may not do this; it needs access to this bucket",
    404: "there is no such bucket, or the token may not see it",
    409: "it conflicts with the state of the bucket",
    410: "it is gone for good; set BUCKET to another bucket",
    413: "it is larger than the Hub, or the account's plan, allows",
    429: "too many requests; try again later",
}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO)
_ROOM = "make room there, or set TMPDIR to another folder"
_LONGEST = 300
_SECONDS = re.compile(r"[0-9]{1,9}")
_LIMIT_REACHED = re.compile(r'"\w+"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*([0-9]{1,9})(?![0-9])', re.ASCII)
_XET_ERRNO = re.compile(r"\(os error (\d+)\)")
_XET_STATUS = re.compile(r"HTTP status \w+ error \((\d{3})")
_SECRETS = re.compile(r"(?<=\?)\S+|\bhf_\w+|\beyJ[\w.-]+|(?<=Bearer )\S+")


class PassingError(BucketError):
    """What may pass by itself. `wait_s` is how long the Hub asks to be left alone, 0 where it does not say."""

    def __init__(self, sentence: str, wait_s: float = 0.0) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s


@contextmanager
def explained(what: str) -> Iterator[None]:
    """What fails at a file of this machine becomes a BucketError that begins with what was tried."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # the latter of hf_xet
        raise translated(error, what) from None


def translated(error: Exception, what: str, remedies: Mapping[int, str] = REMEDIES) -> BucketError:
    """A PassingError where the error may pass by itself. `remedies` say what to do about a status of the Hub."""
    if isinstance(error, OfflineModeIsEnabled):
        return BucketError(f"{what}: HF_HUB_OFFLINE is set; unset it to use a bucket on the Hub")
    if isinstance(error, BucketBatchError):
        reasons = "; ".join(str(one["error"]) for one in error.failures if isinstance(one, dict) and "error" in one)
        told = plain(reasons, _key(error.response)) or "no reason given"
        return PassingError(f"{what}: the Hub could not do it: {told}")
    if isinstance(error, httpx2.HTTPStatusError | HfHubHTTPError):
        return _refused(what, error.response, remedies)
    status = status_of(error)
    if status is not None:
        return _refusal(what, status, remedies)
    return _of_this_machine(error, what) or _broken(error, what)


def status_of(error: Exception) -> int | None:
    """The HTTP status that an error of the clients is about."""
    if isinstance(error, httpx2.HTTPStatusError | HfHubHTTPError):
        return error.response.status_code
    found = _XET_STATUS.search(str(error))
    if found:
        return int(found[1])
    kinds = {hf_xet.XetObjectNotFoundError: 404, hf_xet.XetAuthenticationError: 401}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), None)


def plain(text: str, key: str = "") -> str:
    """A foreign message on one line, cut, without what could be a key: tokens, and the queries of signed addresses."""
    if key:
        text = text.replace(key, "...")
    line = _SECRETS.sub("...", " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _refused(what: str, response: httpx2.Response, remedies: Mapping[int, str]) -> BucketError:
    if response.status_code == 404 and response.headers.get("X-Error-Code") == "EntryNotFound":
        return MissingFileError(f"{what}: there is no such file")
    return _refusal(what, response.status_code, remedies, reason_of(response), _asked_wait(response.headers))


def _refusal(
    what: str, status: int, remedies: Mapping[int, str], reason: str = "", wait_s: float = 0.0
) -> BucketError:
    passes = status in (408, 425, 429) or status >= 500
    other = (
        "the Hub does not answer as it should; try again later" if passes else "the Hub refuses it, as it would again"
    )
    sentence = f"{what}: HTTP {status}: {remedies.get(status, other)}"
    sentence += f", in {wait_s:.0f} s" if wait_s else ""
    sentence += f" (the Hub says: {reason})" if reason else ""
    return PassingError(sentence, wait_s) if passes else BucketError(sentence)


def reason_of(response: httpx2.Response) -> str:
    """The first line of what the Hub gives as its reason, "" where it gives none."""
    stated = response.headers.get("X-Error-Message", "")
    try:
        body = strict_json.parse(response.content)
    except ValueError:
        body = None
    if not stated and isinstance(body, dict):
        stated = str(body.get("error", ""))
    lines = stated.strip().splitlines()
    return plain(lines[0], _key(response)) if lines else ""


def _key(response: httpx2.Response) -> str:
    """The token that the Hub was sent, and might echo."""
    return str(response.request.headers.get("authorization", "")).removeprefix("Bearer ")


def _asked_wait(headers: httpx2.Headers) -> float:
    """Seconds, from the two headers with which the Hub says so; 0 where they are not as they should be."""
    limit = _LIMIT_REACHED.search(headers.get("RateLimit", ""))
    stated = limit[1] if limit else headers.get("Retry-After", "")
    return float(stated) if _SECONDS.fullmatch(stated) else 0.0


def _of_this_machine(error: Exception, what: str) -> BucketError | None:
    """About a disk of this machine; None for other errors."""
    if isinstance(error, OSError) and not isinstance(error, httpx2.HTTPError | ConnectionError):
        place = error.filename or tempfile.tempdir
        return BucketError(f"{what}: {error.strerror or plain(str(error))}: {place} (this machine); {_ROOM}")
    found = _XET_ERRNO.search(str(error))
    if found is None or int(found[1]) not in _DISK:
        return None
    place = f"{tempfile.tempdir}, or the cache of hf_xet"
    return BucketError(f"{what}: {os.strerror(int(found[1]))}: {place} (this machine); {_ROOM}")


def _broken(error: Exception, what: str) -> PassingError:
    text = plain(str(error))
    if isinstance(error, httpx2.HTTPError | OSError | RuntimeError):
        return PassingError(f"{what}: {text or type(error).__name__}")
    told = f"{type(error).__name__}: {text}"
    return PassingError(f"{what}: the answer of the Hub cannot be understood ({told}); try again later")
