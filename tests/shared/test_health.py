"""Waiting for a unit tells what it answers, when that changes and now and then, and ends."""

from contextlib import suppress

import pytest

from shared import health
from shared.errors import SyncError
from tests.http_servers import LoopbackServer, QuietHandler, dripping, listening
from tests.trainer_box.fake_space import Answer, fake_space


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "POLL_S", 0.0)


def test_a_change_is_told_and_the_same_answer_is_not_told_again() -> None:
    answers, told = iter(["HTTP 503", "HTTP 503", "HTTP 502", ""]), list[str]()
    health.wait("the Space", lambda: next(answers), 20.0, told.append)
    assert told == [f"waiting for the Space, 0 of at most 20 s: HTTP {status}" for status in (503, 502)]


def test_a_long_wait_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_TOLD_AGAIN_S", -1.0)
    answers, told = iter(["HTTP 503"] * 3 + [""]), list[str]()
    health.wait("the Space", lambda: next(answers), 20.0, told.append)
    assert len(told) == 3


def test_after_the_deadline_it_is_an_error_with_the_last_answer() -> None:
    with pytest.raises(SyncError, match="the Space is not ready after 0 s .HTTP 503.; is it running"):
        health.wait("the Space", lambda: "HTTP 503", 0.0, lambda line: None)


def test_what_a_unit_gives_as_its_reason_is_told_and_a_proxys_page_is_not() -> None:
    with fake_space() as space:
        assert health.problem_of(f"{space.url}/", {"X-Test": "yes"}) == ""
        assert space.headers[0]["X-Test"] == "yes"
        space.fixed["/health"] = Answer(503, {"error": "no weights\nyet"})
        assert health.problem_of(space.url, {}) == "HTTP 503 (no weights yet)"
        space.fixed["/health"] = Answer(404, "<html>not here</html>")
        assert health.problem_of(space.url, {}).startswith("HTTP 404; check the address, and HF_TOKEN")


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_S", 0.5)
    with dripping() as url:
        assert health.problem_of(url, {}) == "no answer within 0 s"


def test_an_answer_that_is_too_long_is_not_read_to_its_end() -> None:
    class Endless(QuietHandler):
        def do_GET(self) -> None:
            self.reply(200, b"", {"Content-Length": "10000000000"})
            with suppress(OSError):
                while True:
                    self.wfile.write(bytes(100_000))

    with listening(LoopbackServer(Endless)) as url:
        assert health.problem_of(url, {}) == "HTTPError: its answer has more than 1,000,000 bytes"
