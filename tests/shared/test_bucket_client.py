import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shared.bucket.client import connect, ending_in
from tests.hub import StandIn
from tests.shared.hub_calls import NAME, TOKEN

HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n"


@contextmanager
def dribbling(first: bytes) -> Iterator[str]:
    """Where each request is answered by `first`, and then by a space every 50 ms, for long."""
    closed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(first)
                for _ in range(200):
                    connection.sendall(b" ")
                    time.sleep(0.05)

        def watch() -> None:
            try:
                serve()
            except OSError:
                closed.set()

        threading.Thread(target=watch, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert closed.wait(5), "the connection is still open"


@pytest.mark.parametrize(
    "first", [HEADERS, HEADERS + b"[", b"HTTP/1.1 200 OK\r\nX-A: "], ids=["body", "json", "headers"]
)
def test_an_answer_that_dribbles_ends_with_its_call(hub: StandIn, first: bytes) -> None:
    with dribbling(first) as url:
        api = connect(TOKEN)
        api.endpoint = url
        with pytest.raises(TimeoutError), ending_in(0.5):
            list(api.get_bucket_paths_info(NAME, ["r/old"]))


def test_a_call_that_is_out_of_time_sends_nothing(hub: StandIn) -> None:
    with pytest.raises(TimeoutError), ending_in(-1):
        list(connect(TOKEN).get_bucket_paths_info(NAME, ["r/old"]))
    assert hub.count("info") == 0


def test_a_request_times_out_with_its_call(hub: StandIn) -> None:
    hub.inject("stall", "info", seconds=600)
    with pytest.raises(TimeoutError), ending_in(1):
        list(connect(TOKEN).get_bucket_paths_info(NAME, ["r/old"]))
    assert hub.count("info") == 1


def test_a_time_that_has_ended_is_no_matter_to_the_next_call(hub: StandIn) -> None:
    with ending_in(-1):
        pass
    (item,) = connect(TOKEN).get_bucket_paths_info(NAME, ["r/old"])
    assert item.path == "r/old"
