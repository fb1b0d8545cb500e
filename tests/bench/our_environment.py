"""Ours, with its page, as `space_env.serve` serves it, for more sessions than it has by default.

`python -m tests.bench.our_environment PORT SESSIONS`
"""

import sys

from space_env.app import build_app
from space_env.serve import bind, server_of
from space_env.sessions import Desk

if __name__ == "__main__":
    port, sessions = map(int, sys.argv[1:])
    server_of(build_app(None, Desk(sessions))).run(sockets=[bind("127.0.0.1", port)])
