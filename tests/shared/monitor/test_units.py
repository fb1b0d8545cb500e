"""One status page asked over a real socket on loopback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from shared.monitor import units
from shared.monitor.units import Answer, Unit
from tests.http_servers import LoopbackServer, QuietHandler, dripping, listening


@contextmanager
def answering(status: int, body: bytes, seen: list[tuple[str, dict[str, str]]] | None = None) -> Iterator[str]:
    """The URL of a server that answers every GET alike and records path and headers."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if seen is not None:
                seen.append((self.path, dict(self.headers.items())))
            self.reply(status, body)

    with listening(LoopbackServer(Handler)) as url:
        yield url


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (200, b'{"version": 3}', Answer({"version": 3})),
        (200, b"<html>", Answer(problem="its answer is not JSON")),
        (200, b"[1]", Answer(problem="its answer is not a JSON object")),
        (401, b"", Answer(problem="it refused the key (HTTP 401)")),
        (503, b"", Answer(problem="it answered HTTP 503")),
        (307, b"", Answer(problem="it answered HTTP 307")),
    ],
)
def test_an_answer_is_a_document_or_a_reason(status: int, body: bytes, answer: Answer) -> None:
    with answering(status, body) as url:
        assert Unit(url, "/status").ask() == answer


def test_keys_travel_in_headers_only() -> None:
    seen: list[tuple[str, dict[str, str]]] = []
    with answering(200, b"{}", seen) as url:
        Unit(f"{url}/", "/weights/status", key="k1", hub_token="t1").ask()
        Unit(url, "/status").ask()
    (path, headers), (_, bare) = seen
    assert path == "/weights/status"
    assert headers["Authorization"] == "Bearer k1"
    assert "X-HF-Authorization" not in headers, "a Hub token goes to Spaces only"
    assert "Authorization" not in bare


def test_a_unit_that_is_not_there_is_a_sentence(free_port: Callable[[], int]) -> None:
    answer = Unit(f"http://127.0.0.1:{free_port()}", "/status", key="secret-key").ask()
    assert answer.document == {}
    assert answer.problem.startswith("it cannot be reached (")
    assert "secret-key" not in answer.problem


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_unit_that_answers_byte_by_byte_is_not_waited_for(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "TIMEOUT_S", 0.5)
    with dripping(start) as url:
        assert Unit(url, "/status").ask() == Answer(problem="it gave no whole answer within 0 s")


def test_of_an_answer_that_is_too_long_there_is_a_sentence() -> None:
    with answering(200, b" " * 1_000_001) as url:
        assert Unit(url, "/status").ask().problem == "it cannot be reached (its answer has more than 1,000,000 bytes)"
