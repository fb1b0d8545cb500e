import errno
import traceback

import hf_xet
import httpx2
import pytest
from huggingface_hub.errors import BucketBatchError, OfflineModeIsEnabled

from shared.bucket.failures import PassingError, explained, plain, status_of, translated
from shared.errors import BucketError, MissingFileError

WHAT = "cannot read r/a in bucket user/name"


KEY = "oauth.key-123"


def refusal(status: int, body: str = "", **headers: str) -> httpx2.HTTPStatusError:
    request = httpx2.Request("GET", "https://hub.test/api", headers={"authorization": f"Bearer {KEY}"})
    stated = httpx2.Headers([(name.encode(), value.encode()) for name, value in headers.items()])
    response = httpx2.Response(status, request=request, headers=stated, text=body)
    return httpx2.HTTPStatusError("refused", request=request, response=response)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
def test_a_status_that_may_pass(status: int) -> None:
    assert isinstance(translated(refusal(status), WHAT), PassingError)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 409, 410, 413, 416, 451])
def test_a_status_that_will_not_pass(status: int) -> None:
    error = translated(refusal(status), WHAT)
    assert not isinstance(error, PassingError)
    assert str(error).startswith(f"{WHAT}: HTTP {status}: ")
    assert "try again" not in str(error)


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        ('{"error": "over the quota\\nsee the docs"}', {}, "over the quota"),
        ('{"error": "second"}', {"X-Error-Message": "first"}, "first"),
        (f'{{"error": "no {KEY} of Bearer {KEY} is hf_abc"}}', {}, "no ... of Bearer ... is ..."),
        (f'{{"error": "{"x" * 400}"}}', {}, "x" * 300 + "..."),
        ('{"error": ["a list"]}', {}, "['a list']"),
    ],
)
@pytest.mark.parametrize("status", [400, 403, 413, 503])
def test_the_hubs_reason_is_told_in_one_line_without_the_token(
    status: int, body: str, headers: dict[str, str], reason: str
) -> None:
    assert str(translated(refusal(status, body, **headers), WHAT)).endswith(f" (the Hub says: {reason})")


@pytest.mark.parametrize("body", ["", "<html>", "null", "[]", '{"error": ""}', "[" * 10000])
def test_a_refusal_without_a_reason_is_told_by_its_status(body: str) -> None:
    assert (
        str(translated(refusal(410, body), WHAT))
        == f"{WHAT}: HTTP 410: it is gone for good; set BUCKET to another bucket"
    )


def test_a_path_that_the_hub_does_not_know_is_a_missing_file() -> None:
    assert isinstance(translated(refusal(404, **{"X-Error-Code": "EntryNotFound"}), WHAT), MissingFileError)
    assert not isinstance(translated(refusal(404, **{"X-Error-Code": "RepoNotFound"}), WHAT), MissingFileError)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"Retry-After": "\u00b2\u0663"}, 0),
        ({"Retry-After": "-5"}, 0),
        ({"Retry-After": "9" * 400}, 0),
        ({"ratelimit": f'"api";r=0;t={"9" * 5000}', "Retry-After": "7"}, 7),
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
    for error in (
        OSError(errno.ENOSPC, "full"),
        FileNotFoundError("gone"),
        TimeoutError(errno.ETIMEDOUT, "slow disk"),
    ):
        assert not isinstance(translated(error, WHAT), PassingError)
    told = str(translated(OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), WHAT))
    assert (
        told
        == f"{WHAT}: No space left on device: /tmp/x (this machine); make room there, or set TMPDIR to another folder"
    )


def test_a_thing_that_xet_does_not_find_is_no_file_of_this_machine() -> None:
    assert status_of(hf_xet.XetObjectNotFoundError("not found")) == 404
    assert status_of(hf_xet.XetAuthenticationError("not valid")) == 401
    assert status_of(FileNotFoundError("not found")) is None


def test_a_full_disk_is_told_from_a_broken_connection_in_the_text_of_xet_errors() -> None:
    full = translated(RuntimeError("File reconstruction error: IO Error: No space left on device (os error 28)"), WHAT)
    assert not isinstance(full, PassingError)
    assert str(full).startswith(f"{WHAT}: No space left on device: ")
    assert str(full).endswith(
        "or the cache of hf_xet (this machine); make room there, or set TMPDIR to another folder"
    )
    assert isinstance(translated(RuntimeError("Connection reset by peer (os error 104)"), WHAT), PassingError)


def test_offline_mode_is_not_tried_again_and_says_what_to_do() -> None:
    error = translated(OfflineModeIsEnabled("offline"), WHAT)
    assert not isinstance(error, PassingError)
    assert str(error) == f"{WHAT}: HF_HUB_OFFLINE is set; unset it to use a bucket on the Hub"


def test_a_failed_operation_is_told_with_the_hubs_reason() -> None:
    error = BucketBatchError("failed", response=refusal(422).response)
    error.failures = [
        {"path": "r/a", "error": f"quota of hf_abcdef\nexceeded {KEY}"},
        {"path": "r/b", "error": "same"},
    ]
    assert str(translated(error, WHAT)) == f"{WHAT}: the Hub could not do it: quota of ... exceeded ...; same"


@pytest.mark.parametrize("error", [ValueError("no JSON"), KeyError("a"), TypeError("b"), AttributeError("c")])
def test_an_answer_that_cannot_be_read_may_pass(error: Exception) -> None:
    with pytest.raises(
        PassingError, match=f"{WHAT}: the answer of the Hub cannot be understood .{type(error).__name__}"
    ):
        raise translated(error, WHAT)


def test_what_is_no_trouble_of_a_disk_is_let_through() -> None:
    for error in (BucketError("ours"), PassingError("ours"), ZeroDivisionError(), TypeError()):
        with pytest.raises(type(error)) as caught, explained(WHAT):
            raise error
        assert caught.value is error


def test_the_foreign_error_is_not_in_a_printed_traceback() -> None:
    with pytest.raises(BucketError) as caught, explained(WHAT):
        raise OSError(f"sent {KEY}")
    assert "OSError" not in "".join(traceback.format_exception(caught.value))


def test_what_could_be_a_key_is_left_out() -> None:
    text = "get https://cas.test/xorb?X-Sig=abc&k=v failed,\n Authorization: Bearer eyJ0 for hf_abcDEF123"
    assert plain(text) == "get https://cas.test/xorb?... failed, Authorization: Bearer ... for ..."
