"""The real server on a thread of the test's own process, on loopback, for tests that need no process of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from space_env.serve import MAX_SESSIONS, bind, build_app, server_of

DEADLINE_S = 20.0


@contextmanager
def running(api_key: str | None = None, max_sessions: int = MAX_SESSIONS, port: int = 0) -> Iterator[str]:
    """The URL of a server that answers; it is stopped, with every connection to it, at the end."""
    listener = bind("127.0.0.1", port)
    server = server_of(build_app(api_key, max_sessions))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        listener.close()
        assert not thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not so within {DEADLINE_S} s"
        time.sleep(0.02)
