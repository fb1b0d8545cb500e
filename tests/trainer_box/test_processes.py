"""Units as real processes: waited for, told of when they die, and gone with all their children when stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.errors import SyncError
from trainer_box.processes import LOOPBACK, Unit, Units, check_port, free_port

DEADLINE_S = 60.0

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import subprocess, sys, time;"
    "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; print(0, flush=True); time.sleep(600)']);"
    "time.sleep(600)"])
time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
FAILING = """
import sys
print(*range(100), sep="\\n")
sys.exit("out of luck")
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in (("server", SERVER), ("family", FAMILY), ("stubborn", STUBBORN), ("failing", FAILING)):
        (tmp_path / f"unit_{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture
def units(tmp_path: Path) -> Iterator[Units]:
    with Units(tmp_path) as entered:
        yield entered


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def start(units: Units, name: str, **environment: str) -> Unit:
    return units.start(name, f"unit_{name}", [], environment)


def process_of(log: Path) -> list[psutil.Process]:
    """The processes of a unit, found by the log that they write to."""
    found = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        if Path(f"/proc/{process.pid}/fd/1").resolve() == log:
            found.append(process)
    return found


def test_a_unit_that_answers_is_healthy_and_its_progress_was_told(units: Units) -> None:
    port = free_port()
    told: list[str] = []
    unit = start(units, "server", PORT=str(port))
    unit.wait_until_healthy(f"http://{LOOPBACK}:{port}/health", DEADLINE_S, told.append)
    assert unit.exit_code is None
    assert all(line.startswith("server: starting, ") for line in told)
    assert units["server"] is unit
    assert units.dead(but=unit) is None


def test_a_unit_that_is_never_healthy_is_given_up_after_the_deadline(units: Units) -> None:
    port = free_port()
    unit = start(units, "server", PORT=str(port))
    with pytest.raises(SyncError, match="^server is not ready after 1 s"):
        unit.wait_until_healthy(f"http://{LOOPBACK}:{port}/other", 1, lambda line: None)


def test_a_unit_that_dies_is_told_with_exit_code_and_last_lines(units: Units, tmp_path: Path) -> None:
    unit = start(units, "failing")
    with pytest.raises(SyncError) as caught:
        unit.wait_until_healthy(f"http://{LOOPBACK}:{free_port()}/health", DEADLINE_S, lambda line: None)
    first, *tail = str(caught.value).splitlines()
    assert first == f"failing ended with exit code 1; its last lines, from {tmp_path / 'failing.log'}:"
    assert [line.strip() for line in tail] == [*map(str, range(86, 100)), "out of luck"]
    assert units.dead(but=start(units, "stubborn")) is unit


def test_stopping_a_unit_ends_its_children_and_theirs(units: Units) -> None:
    unit = start(units, "family")
    wait_until(lambda: bool(unit.log.read_text()))
    family = process_of(unit.log)
    assert len(family) == 3
    unit.stop()
    assert not psutil.wait_procs(family, timeout=10)[1]
    assert unit.exit_code == -signal.SIGTERM


def test_children_left_behind_by_a_dead_unit_are_stopped_too(units: Units) -> None:
    unit = start(units, "family")
    wait_until(lambda: bool(unit.log.read_text()))
    family = process_of(unit.log)
    psutil.Process(min(process.pid for process in family)).kill()
    wait_until(lambda: unit.exit_code is not None)
    unit.stop()
    assert not psutil.wait_procs(family, timeout=10)[1]


def test_a_unit_that_is_deaf_to_the_request_is_killed(units: Units, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_box.processes._STOP_S", 0.5)
    unit = start(units, "stubborn")
    wait_until(lambda: "deaf" in unit.log.read_text())
    unit.stop()
    assert unit.exit_code == -signal.SIGKILL
    unit.stop()  # once more is harmless


def test_leaving_the_context_stops_all_whatever_happened(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Units(tmp_path) as units:
        started = [start(units, "family"), units.start("other", "unit_family", [], {})]
        wait_until(lambda: all(unit.log.read_text() for unit in started))
        family = [process for unit in started for process in process_of(unit.log)]
        raise KeyboardInterrupt
    assert len(family) == 6
    assert not psutil.wait_procs(family, timeout=10)[1]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_unit_that_starts_while_a_signal_arrives_is_stopped_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[psutil.Process] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(psutil.Process(self.pid))
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("trainer_box.processes.subprocess.Popen", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Units(tmp_path) as units:
            start(units, "family")
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(started) == 1
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_a_free_port_passes_and_a_taken_one_is_told_with_the_option(free_port: Callable[[], int]) -> None:
    port = free_port()
    check_port(port, "--port")
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.create_server((address, port)):
            with pytest.raises(SyncError) as caught:
                check_port(port, "--port")
            assert str(caught.value) == (
                f"port {port} cannot be used (Address already in use); choose another with --port"
            )


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_what_is_no_port_is_one_sentence(port: int) -> None:
    with pytest.raises(SyncError, match=f"^{port} is not a port; choose one from 1 to 65535 with --port"):
        check_port(port, "--port")


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server((LOOPBACK, free_port())):
        pass


def test_units_run_the_same_python(units: Units) -> None:
    assert process_of(start(units, "stubborn").log)[0].exe() == str(Path(sys.executable).resolve())
