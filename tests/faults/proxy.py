"""A TCP proxy on loopback that cuts connections, is slow, or takes none. It knows nothing of what passes through."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_BLOCK = 1 << 16


class Proxy:
    """Each connection lives `cut_after_s` seconds at most, and what comes back is `delay_s` late."""

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        self.cut_after_s: float | None = None
        self.delay_s = 0.0
        self.cuts = 0
        self._target = (target.hostname or "", target.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Whatever is open now."""
        self._cut(*list(self._open))

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._target) as server:
            self._open |= {client, server}
            timer = threading.Timer(self.cut_after_s or 0, self._cut, (client, server))
            if self.cut_after_s is not None:
                timer.start()
            back = threading.Thread(target=self._pump, args=(server, client, True), daemon=True)
            back.start()
            self._pump(client, server, False)
            back.join()
            timer.cancel()
            self._open -= {client, server}

    def _cut(self, *connections: socket.socket) -> None:
        self.cuts += 1
        for connection in connections:
            _shut(connection)

    def _pump(self, source: socket.socket, target: socket.socket, is_late: bool) -> None:
        with suppress(OSError):
            while block := source.recv(_BLOCK):
                time.sleep(self.delay_s if is_late else 0)
                target.sendall(block)
        _shut(source)
        _shut(target)


@contextmanager
def proxy_of(url: str) -> Iterator[Proxy]:
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
