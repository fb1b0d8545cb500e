import errno
import os

import hf_xet
import httpx2
import pytest
from huggingface_hub.errors import BucketBatchError, HfHubHTTPError, OfflineModeIsEnabled

from shared.bucket.failures import PassingError, explained, plain, status_of, translated
from shared.errors import BucketError

WHAT = "cannot read r/a in bucket user/name"


def refusal(status: int, **headers: str) -> HfHubHTTPError:
    request = httpx2.Request("GET", "https://hub.test/api")
    return HfHubHTTPError("refused", response=httpx2.Response(status, request=request, headers=headers))


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
def test_a_status_that_may_pass(status: int) -> None:
    assert isinstance(translated(refusal(status), WHAT), PassingError)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 409, 410, 413])
def test_a_status_that_will_not_pass(status: int) -> None:
    error = translated(refusal(status), WHAT)
    assert not isinstance(error, PassingError)
    assert str(error).startswith(f"{WHAT}: HTTP {status}: ")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"ratelimit": '"api";r=0;t=55', "Retry-After": "7"}, 55),
        ({"ratelimit": '"api";r=10;t=55', "Retry-After": "7"}, 7),
    ],
)
def test_the_wait_that_the_hub_asks_for(headers: dict[str, str], seconds: float) -> None:
    error = translated(refusal(429, **headers), WHAT)
    assert isinstance(error, PassingError)
    assert error.wait_s == seconds
    assert (f"in {seconds} s" in str(error)) == bool(seconds)


@pytest.mark.parametrize(
    ("text", "status", "passes"),
    [
        ("Task error: Request error: HTTP status client error (403 Forbidden), domain: http://hub.test", 403, False),
        ("Rate limited: HTTP status client error (429 Too Many Requests), domain: http://hub.test", 429, True),
        ("Server error: HTTP status server error (500 Internal Server Error)", 500, True),
        ("Operation cancelled: Task cancelled: task 48 was cancelled", None, True),
        ("error decoding response body (of 403 bytes)", None, True),
    ],
)
def test_a_status_is_read_in_the_text_of_xet_errors(text: str, status: int | None, passes: bool) -> None:
    for error in (RuntimeError(text), ConnectionError(text)):
        assert status_of(error) == status
        assert isinstance(translated(error, WHAT), PassingError) == passes


def test_a_trouble_of_this_machine_is_not_tried_again() -> None:
    for error in (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), FileNotFoundError("gone"), PermissionError("no")):
        assert not isinstance(translated(error, WHAT), PassingError)


def test_a_thing_that_xet_does_not_find_is_no_file_of_this_machine() -> None:
    assert status_of(hf_xet.XetObjectNotFoundError("not found")) == 404
    assert status_of(FileNotFoundError("not found")) is None


def test_a_full_disk_is_told_from_a_broken_connection_in_the_text_of_xet_errors() -> None:
    full = translated(RuntimeError("File reconstruction error: IO Error: No space left on device (os error 28)"), WHAT)
    assert not isinstance(full, PassingError)
    assert str(full) == f"{WHAT}: No space left on device (this machine); free some space, or use another disk"
    assert isinstance(translated(RuntimeError("Connection reset by peer (os error 104)"), WHAT), PassingError)


def test_offline_mode_is_not_tried_again_and_says_what_to_do() -> None:
    error = translated(OfflineModeIsEnabled("offline"), WHAT)
    assert not isinstance(error, PassingError)
    assert str(error) == f"{WHAT}: HF_HUB_OFFLINE is set; unset it to use a bucket on the Hub"


def test_a_failed_operation_is_told_with_the_hubs_reason() -> None:
    error = BucketBatchError("failed", response=refusal(422).response)
    error.failures = [{"path": "r/a", "error": "quota of hf_abcdef\nexceeded"}, {"path": "r/b", "error": "the same"}]
    assert str(translated(error, WHAT)) == f"{WHAT}: the Hub could not do it: quota of ... exceeded; the same"


def test_an_answer_that_cannot_be_read_may_pass() -> None:
    for error in (ValueError("no JSON"), KeyError("xetHash")):
        with pytest.raises(PassingError, match=WHAT), explained(WHAT):
            raise error


def test_our_own_errors_and_those_of_a_deadline_are_let_through() -> None:
    for error in (BucketError("ours"), PassingError("ours"), TimeoutError("out of time"), ZeroDivisionError()):
        with pytest.raises(type(error)) as caught, explained(WHAT):
            raise error
        assert caught.value is error


def test_what_could_be_a_key_is_left_out() -> None:
    text = "get https://cas.test/xorb?X-Sig=abc&k=v failed,\n Authorization: Bearer eyJ0 for hf_abcDEF123"
    assert plain(text) == "get https://cas.test/xorb?... failed, Authorization: Bearer ... for ..."
