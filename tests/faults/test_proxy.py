"""The proxy passes answers on, cuts connections when told to, and takes none for a server that is away."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.faults.proxy import Proxy, proxy_of
from tests.trainer_box.fake_space import FakeSpace, fake_space


@pytest.fixture
def space() -> Iterator[FakeSpace]:
    with fake_space("tiny") as running:
        yield running


@contextmanager
def connected(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0), timeout=10) as connection:
        yield connection


def ask(connection: socket.socket) -> bytes:
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: space\r\n\r\n")
    return connection.recv(12)


def test_it_passes_on_what_is_answered(space: FakeSpace) -> None:
    with proxy_of(space.url) as proxy, connected(proxy) as connection:
        assert ask(connection) == b"HTTP/1.0 200"


def test_it_cuts_a_connection_after_a_time(space: FakeSpace) -> None:
    with proxy_of(space.url) as proxy:
        proxy.cut_after_s = 0.2
        with connected(proxy) as connection:
            assert connection.recv(1) == b""
        assert proxy.cuts == 1


def test_it_takes_no_connection_for_a_server_that_is_away() -> None:
    with proxy_of("http://127.0.0.1:1") as proxy, connected(proxy) as connection:
        assert connection.recv(1) == b""
