"""Processes that are started together end together, however the command or whoever started it ends."""

import os
import signal
import sys
import threading
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from space_vllm.group import Group
from tests.conftest import StartProcess
from tests.space_vllm.processes import DEADLINE_S, Printed, descendants, has_ended, wait_until

# Three generations, the youngest of which hears no request to end. Tells their ids once all are there.
FAMILY = """
import os, subprocess, sys, time
deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True);"
child = "import os, subprocess, sys, time; print(os.getpid(), flush=True);"
child += f"subprocess.Popen([sys.executable, '-c', {deaf + 'time.sleep(600)'!r}]); time.sleep(600)"
print(os.getpid(), flush=True)
subprocess.Popen([sys.executable, "-c", child])
time.sleep(600)
"""
SHARING = """
import time
from multiprocessing.shared_memory import SharedMemory
print(SharedMemory(create=True, size=4096).name, flush=True)
time.sleep(600)
"""
STARTING = f"""
import os, sys, time
from space_vllm.group import Group
with Group([sys.executable, "-c", {FAMILY!r}], os.environ):
    time.sleep(600)
"""


def group(source: str) -> Group:
    return Group([sys.executable, "-c", source], os.environ)


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Printed:
    return Printed()


def test_leaving_ends_every_process_and_what_they_printed_was_passed_on(printed: Printed) -> None:
    with group(FAMILY) as started:
        wait_until(lambda: len(printed.out()) == 3)
        assert started.exit_code is None
        family = list(map(int, printed.out()))
        assert {os.getpgid(process) for process in family} == {os.getpgid(family[0])}
        assert os.getpgid(family[0]) != os.getpgid(0)
    assert all(map(has_ended, family))
    assert started.exit_code == -signal.SIGKILL


def test_a_command_that_is_killed_leaves_nothing_behind_once_the_group_is_left(printed: Printed) -> None:
    with group(FAMILY) as started:
        wait_until(lambda: len(printed.out()) == 3)
        command, *others = map(int, printed.out())
        os.kill(command, signal.SIGKILL)
        wait_until(lambda: started.exit_code is not None)
        assert not any(map(has_ended, others))
    assert all(map(has_ended, others))


def test_a_stopped_process_is_ended_too(printed: Printed) -> None:
    with group(FAMILY):
        wait_until(lambda: len(printed.out()) == 3)
        family = list(map(int, printed.out()))
        for process in family:
            os.kill(process, signal.SIGSTOP)
    assert all(map(has_ended, family))


def test_everything_ends_when_the_process_that_started_it_is_killed(process: StartProcess) -> None:
    parent = process([sys.executable, "-c", STARTING])
    wait_until(lambda: len(parent.output().splitlines()) == 3)
    started = descendants(parent.process.pid)
    assert set(map(int, parent.output().splitlines())) < set(started)
    parent.process.kill()
    wait_until(lambda: all(map(has_ended, started)))


def test_shared_memory_of_a_killed_process_is_removed(printed: Printed) -> None:
    with group(SHARING) as started:
        wait_until(printed.out)
        (name,) = printed.out()
        started.send(signal.SIGKILL)
        wait_until(lambda: started.exit_code is not None)
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


def test_the_last_line_is_that_of_the_error_and_not_of_a_tracker(printed: Printed) -> None:
    warning = "resource_tracker: 2 leaked\n  warnings.warn(\n\n"
    with group(f"import atexit; atexit.register(print, {warning!r}); raise ValueError('the reason')") as started:
        wait_until(lambda: started.exit_code is not None)
    assert started.exit_code == 1
    assert started.last_line == "ValueError: the reason"
    assert "Traceback (most recent call last):" in printed.out()


def test_a_command_that_cannot_be_started_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(FileNotFoundError, match="no-such-command"), Group([str(tmp_path / "no-such-command")], {}):
        pass
    assert set(psutil.Process().children()) <= before


# The command prints more than a pipe holds. The parent ends once it has ended.
CHATTY = """
import os, sys, time
from space_vllm.group import Group
chatty = "import sys; print('x' * 99 + '\\\\n' * 9999, flush=True); open(sys.argv[1], 'w').close()"
with Group([sys.executable, "-c", chatty, sys.argv[1]], os.environ) as group:
    while group.exit_code is None:
        time.sleep(0.05)
"""


@pytest.mark.parametrize("place", ["> >(true)", "> /dev/full", ">&-", "2>&- >&-"])
def test_output_that_nobody_takes_stops_no_process(process: StartProcess, tmp_path: Path, place: str) -> None:
    done = tmp_path / "done"
    parent = process(["bash", "-c", f'exec "$0" -c "$1" "$2" {place}', sys.executable, CHATTY, str(done)])
    assert parent.wait(DEADLINE_S) == 0
    assert done.exists()


# In a session of its own a process goes on, here for as long as it is wanted, and holds the output.
LEAVING = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {outliving!r}, sys.argv[1]], start_new_session=True)
"""
OUTLIVING = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    if "{kind}" == "chatty":
        os.write(1, b"still here")
    time.sleep(0.01)
"""


@pytest.mark.parametrize("kind", ["quiet", "chatty"])
def test_a_process_that_has_left_the_group_keeps_no_thread_and_no_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("space_vllm.group._TIDY_S", 0.1)
    end, source = tmp_path / "end", LEAVING.format(outliving=OUTLIVING.format(kind=kind))
    threads, handles = set(threading.enumerate()), psutil.Process().num_fds()  # some may be of other tests, and go
    try:
        with Group([sys.executable, "-c", source, str(end)], os.environ) as started:
            wait_until(lambda: started.exit_code is not None)
        assert set(threading.enumerate()) <= threads
        assert psutil.Process().num_fds() <= handles
    finally:
        end.touch()
