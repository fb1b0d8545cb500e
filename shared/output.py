"""Standard output and standard error of a process whose work must not depend on who reads them.

What they do not take is dropped: a reader that has gone, or a log on a full disk, ends nothing and changes no exit
code. Knows nothing of what is told.
"""

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO


def say(line: str) -> None:
    """A line on standard output. Unlike a `print`, it may be called in a signal handler, whatever is under way."""
    write(sys.stdout, f"{line}\n".encode(errors="backslashreplace"))


def complain(line: str) -> None:
    """The same on standard error."""
    write(sys.stderr, f"{line}\n".encode(errors="backslashreplace"))


def write(stream: TextIO | None, data: bytes) -> None:
    """Past the stream's buffer, which would be tried again at the end of the process."""
    if stream is None:  # it was closed from the start, and another file may have its number by now
        return
    with suppress(OSError):
        while data:
            data = data[os.write(stream.fileno(), data) :]


def let_libraries_print() -> None:
    """From now on nothing that prints fails, such as a library's progress bar. To be called before their imports."""
    sys.stdout, sys.stderr = _lenient(sys.stdout), _lenient(sys.stderr)


def _lenient(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w")
    file = io.BufferedWriter(_Lenient(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=True)


class _Lenient(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes
