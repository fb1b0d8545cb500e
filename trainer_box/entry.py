"""Starts a command whose imports take seconds, so that Ctrl-C is one sentence from the first moment on.

Knows the standard library only: whatever it imported itself would be imported before it could listen.
"""

import importlib
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def run(module: str, farewell: str) -> int:
    """Import `module` and call its `main`; the exit code. An interrupt is answered with `farewell`."""

    def leave(number: int, frame: FrameType | None) -> None:
        print(farewell, file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)  # libraries turn an exception in the middle of their import into others

    signal.signal(signal.SIGINT, leave)
    main = importlib.import_module(module).main
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code: int = main()
    except KeyboardInterrupt:
        print(farewell, file=sys.stderr)
        return INTERRUPTED
    return code
