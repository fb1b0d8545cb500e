"""What nobody takes is dropped, and the process goes on: told by real processes whose output leads nowhere."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from shared import output

ROOT = Path(__file__).parents[2]
WORK = """
import sys
from shared import output
for _ in range(3):
    output.say("a line")
    output.complain("a complaint")
{more}
open(sys.argv[1], "w").write("done")
sys.exit(3)
"""
LIBRARIES = """
output.let_libraries_print()
for _ in range(3):
    print("x" * 9999, flush=True)
    print("without a newline", end="", file=sys.stderr, flush=True)
"""


def unread() -> IO[bytes]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "wb", buffering=0)


def full() -> IO[bytes]:
    return open("/dev/full", "wb", buffering=0)


@pytest.mark.parametrize("more", ["", LIBRARIES], ids=["lines", "libraries"])
@pytest.mark.parametrize("place", [unread, full])
def test_a_process_whose_output_nobody_takes_goes_on_to_its_own_exit_code(
    tmp_path: Path, place: Callable[[], IO[bytes]], more: str
) -> None:
    command = [sys.executable, "-c", WORK.format(more=more), str(tmp_path / "done")]
    with place() as nowhere:
        ended = subprocess.run(command, cwd=ROOT, stdout=nowhere, stderr=nowhere, timeout=60, check=False)
    assert (tmp_path / "done").read_text() == "done"
    assert ended.returncode == 3


@pytest.mark.parametrize("more", ["", LIBRARIES], ids=["lines", "libraries"])
def test_streams_that_were_closed_from_the_start_write_into_no_other_file(tmp_path: Path, more: str) -> None:
    """The next file that is opened gets the number of the first that is closed."""
    source = "file = open('precious', 'w')\n" + WORK.format(more=more)
    command = ["sh", "-c", 'exec "$0" -c "$1" "$2" >&- 2>&-', sys.executable, source, str(tmp_path / "done")]
    ended = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, timeout=60, check=False)
    assert ended.returncode == 3
    assert (tmp_path / "done").read_text() == "done"
    assert (tmp_path / "precious").read_text() == ""


def test_lines_arrive_whole_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    output.say("first")
    output.complain("second \udcff")
    output.say("third")
    assert capfd.readouterr() == ("first\nthird\n", "second \\udcff\n")


def test_a_long_line_arrives_whole_where_only_a_part_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []

    def take(handle: int, data: bytes) -> int:
        taken.append(data[:1000])
        return len(taken[-1])

    monkeypatch.setattr("os.write", take)
    with open(os.devnull, "w") as stream:
        output.write(stream, bytes(range(250)) * 10)
    monkeypatch.undo()
    assert b"".join(taken) == bytes(range(250)) * 10


def test_a_stream_without_a_file_takes_nothing_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    output.say("a line")
    monkeypatch.setattr("sys.stdout", None)
    output.say("a line")
