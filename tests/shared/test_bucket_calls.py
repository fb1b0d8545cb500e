"""Answers that are not as they should be, read by the real huggingface_hub and hf_xet clients."""

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from shared.errors import BucketError
from tests.hub import StandIn
from tests.shared.hub_calls import CALLS, OLD, QUICK, TOKEN, bucket_at

NO_FAILURE = '{"message": "back soon"}'  # of a batch it says so


@pytest.mark.parametrize(
    "answer", ["null", "[null]", "5", NO_FAILURE, "", "<html>", "[" * 10000, '[{"type": "file"}]']
)
@pytest.mark.parametrize("on", ["info", "tree", "batch"])
def test_an_answer_of_another_shape_is_asked_for_again(hub: StandIn, tmp_path: Path, on: str, answer: str) -> None:
    hub.inject("status", on, status=200, body=answer)
    CALLS[on](bucket_at(hub), tmp_path)
    assert hub.count(on) == (1 if (on, answer) == ("batch", NO_FAILURE) else 2)


@pytest.mark.parametrize("on", ["info", "tree", "batch"])
def test_an_answer_that_keeps_another_shape_is_a_sentence(hub: StandIn, tmp_path: Path, on: str) -> None:
    hub.inject("status", on, status=200, body="[null]", times=0)
    with pytest.raises(
        BucketError, match=r"cannot .* user/name: the answer of the Hub cannot be understood .*\(3 att"
    ):
        CALLS[on](bucket_at(hub), tmp_path)
    assert hub.count(on) == QUICK.attempts


@pytest.mark.parametrize(
    "odd",
    [
        *[{"size": size} for size in (-3, 2**50, "3", None, 3.0, True, 1e30, 10**30)],
        *[{"path": path} for path in (None, 7, ["r/old"], "r/other")],
        {"xetHash": None},
        {"mtime": 5},
        {"mtime": "yesterday"},
    ],
)
def test_a_listed_value_that_no_file_has_is_neither_used_nor_an_error_of_python(
    hub: StandIn, odd: dict[str, Any]
) -> None:
    item = {"type": "file", "path": "r/old", "size": 3, "xetHash": "0" * 64, **odd}
    hub.inject("status", "info", status=200, body=json.dumps([item]), times=0)
    for call in (bucket_at(hub).read, lambda path: bucket_at(hub).delete([path])):
        with pytest.raises(
            BucketError, match=r"r/old .*: the answer of the Hub cannot be understood .*\(3 attempts\)"
        ):
            call("r/old")
    assert (hub.count("resolve"), hub.count("batch")) == (0, 0)
    hub.clear()
    assert bucket_at(hub).read("r/old") == OLD


@pytest.mark.parametrize("odd", [{"path": None}, {"path": 7, "type": "directory"}, {"size": None}])
def test_a_tree_with_a_value_that_no_file_has_is_a_sentence(hub: StandIn, odd: dict[str, Any]) -> None:
    item = {"type": "file", "path": "r/old", "size": 3, "xetHash": "0" * 64, **odd}
    hub.inject("status", "tree", status=200, body=json.dumps([item]), times=0)
    for call in (lambda: bucket_at(hub).files("r"), lambda: bucket_at(hub).folders()):
        with pytest.raises(BucketError, match="cannot list .*: the answer of the Hub cannot be understood"):
            call()


def test_an_odd_wait_that_the_hub_asks_for_is_none(hub: StandIn, tmp_path: Path) -> None:
    for wait in ("nan", "inf", "9" * 400, "-1", "1e9", "0x10", "1, 2"):
        hub.inject("status", "info", status=429, retry_after=wait)
        CALLS["info"](bucket_at(hub), tmp_path)


@pytest.mark.parametrize("on", ["info", "batch", "tree"])
@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_token_that_the_hub_echoes_is_in_no_traceback(hub: StandIn, tmp_path: Path, on: str, status: int) -> None:
    hub.inject("status", on, status=status, body=json.dumps({"error": f"no {TOKEN}"}), times=0)
    with pytest.raises(BucketError, match=f"HTTP {status}: .* .the Hub says: no ....") as caught:
        CALLS[on](bucket_at(hub), tmp_path)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("body", ["null", "[]", '{"errors": 5}', "[" * 10000])
def test_a_refusal_whose_body_has_another_shape_is_told_by_its_status(hub: StandIn, tmp_path: Path, body: str) -> None:
    hub.inject("status", "info", status=403, body=body)
    with pytest.raises(BucketError, match="HTTP 403: the token may not do this; it needs access to this bucket$"):
        CALLS["info"](bucket_at(hub), tmp_path)
    assert hub.count("info") == 1
