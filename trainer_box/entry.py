"""Starts a command whose imports take seconds, so that Ctrl-C is one sentence from the first moment on.

Knows the standard library only, as `shared.output` does: whatever it imported itself would be imported before it could
listen.
"""

import importlib
import os
import signal
from types import FrameType

from shared import output

INTERRUPTED = 130


def run(module: str, farewell: str) -> int:
    """Import `module` and call its `main`; the exit code. An interrupt is answered with `farewell`."""

    def leave(number: int, frame: FrameType | None) -> None:
        output.complain(farewell)
        os._exit(INTERRUPTED)  # libraries turn an exception in the middle of their import into others

    signal.signal(signal.SIGINT, leave)
    output.let_libraries_print()
    main = importlib.import_module(module).main
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code: int = main()
    except KeyboardInterrupt:
        output.complain(farewell)
        return INTERRUPTED
    return code
