"""A server that ends, hangs or leaves is started again; one that is alive is let alone, however long it takes."""

import os
import re
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from space_vllm.supervisor import Limits, Seen, Supervisor, Watch, look
from tests.conftest import StartProcess
from tests.space_vllm.processes import DEADLINE_S, Printed, descendants, has_ended, wait_until

QUICK = Limits(first_pause=0.01, longest_pause=0.04, period=0.05, start=2000, silence=5, refusals=2, stop=10)
NORMAL = Limits()

# The first start does what the first line of the plan says, and so on; the last line holds for all later ones. Every
# start adds a line to the file `starts`, every look at its health one to `looks`.
FAKE = """
import argparse, http.server, os, signal, subprocess, sys, time
folder, port = sys.argv[1:]

def note(name, text=""):
    with open(f"{folder}/{name}", "a") as out:
        print(text, file=out)

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if kind == "silent" and os.path.exists(f"{folder}/looks"):
            time.sleep(600)
        note("looks", self.path)
        self.send_response(int(kind) if kind.isdigit() else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_): pass

def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Answers)
    if kind == "leaves":
        while not os.path.exists(f"{folder}/looks"):
            server.handle_request()
        server.server_close()
        time.sleep(600)
    server.serve_forever()

note("starts", os.environ["TMPDIR"])
starts = len(open(f"{folder}/starts").readlines())
plan = open(f"{folder}/plan").read().splitlines()
kind, _, rest = plan[min(starts, len(plan)) - 1].partition(" ")
if kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kind = "200"
if kind == "polite":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: (time.sleep(0.5), note("asked", number), sys.exit(7)))
    kind = "200"
if kind == "orphans":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note("orphan", child.pid)
if kind == "exits":
    sys.exit(int(rest) if rest.isdigit() else rest)
if kind == "usage":
    argparse.ArgumentParser("fake").exit(2, f"fake: {rest}")
if kind in ("dies", "orphans"):
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "never":
    time.sleep(600)
serve()
"""


class Scene:
    """A supervised fake server, on a thread of its own."""

    def __init__(self, folder: Path, port: int, limits: Limits) -> None:
        self._folder = folder
        command = [sys.executable, "-c", FAKE, str(folder), str(port)]
        self.supervisor = Supervisor(command, os.environ, "127.0.0.1", port, limits)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def lines(self, name: str) -> list[str]:
        file = self._folder / name
        return file.read_text().splitlines() if file.exists() else []

    def returns(self) -> int | None:
        """What `run` returned."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.code

    def ends(self) -> int | None:
        self.supervisor.ask_to_end(signal.SIGTERM)
        return self.returns()

    def _run(self) -> None:
        self.code = self.supervisor.run()


@pytest.fixture
def supervised(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Callable[..., Scene]]:
    """Starts a scene of this plan, one line per start. Leaves no process and no folder behind."""
    scenes: list[Scene] = []
    others = set(psutil.Process().children())

    def start(*plan: str, **limits: Any) -> Scene:
        (tmp_path / "plan").write_text("\n".join(plan))
        scenes.append(Scene(tmp_path, free_port(), replace(QUICK, **limits)))
        return scenes[-1]

    yield start
    for scene in scenes:
        scene.supervisor.ask_to_end(signal.SIGTERM)
        scene.supervisor.ask_to_end(signal.SIGTERM)
        scene.returns()
    assert set(psutil.Process().children()) <= others
    assert not [folder for folder in (tmp_path / "starts").read_text().splitlines() if Path(folder).exists()]


Start = Callable[..., Scene]


class Said:
    """The sentences until now, without the times."""

    def __call__(self) -> list[str]:
        return [re.sub(r"after \d+ s", "after N s", line) for line in Printed().err() if line.startswith("vLLM ")]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Said:
    return Said()


def test_each_end_is_told_and_pauses_grow_to_the_longest(supervised: Start, said: Said) -> None:
    scene = supervised("exits out of luck", "exits 0", "exits 3", "dies", "200")
    wait_until(lambda: scene.lines("looks"))
    assert scene.ends() == 0
    assert said() == [
        "vLLM ended with exit code 1 and the line 'out of luck' after N s; it starts again in 0.01 s",
        "vLLM ended with exit code 0 after N s; it starts again in 0.02 s",
        "vLLM ended with exit code 3 after N s; it starts again in 0.04 s",
        "vLLM was ended by signal 9 (Killed) after N s; it starts again in 0.04 s",
    ]


def test_after_a_healthy_while_the_first_pause_comes_again(supervised: Start, said: Said) -> None:
    scene = supervised("exits 1", "exits 1", "leaves", "exits 1", "200", steady=1)
    wait_until(lambda: len(scene.lines("starts")) == 5)
    scene.ends()
    assert [line.rpartition(" in ")[2] for line in said()] == ["0.01 s", "0.02 s", "0.01 s", "0.02 s"]


def test_a_server_that_takes_no_more_connections_is_started_again(supervised: Start, said: Said) -> None:
    scene = supervised("leaves", "200")
    wait_until(lambda: len(scene.lines("looks")) > 2)
    assert scene.ends() == 0
    assert said() == ["vLLM took no more connections after N s; it starts again in 0.01 s"]


def test_a_server_that_goes_silent_is_started_again(
    supervised: Start, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("space_vllm.supervisor._LOOK_S", 0.1)
    scene = supervised("silent", "200")
    wait_until(lambda: len(scene.lines("starts")) == 2)
    assert scene.ends() == 0
    assert said() == ["vLLM did not answer any more after N s; it starts again in 0.01 s"]


def test_a_server_that_never_answers_is_started_again(supervised: Start, said: Said) -> None:
    scene = supervised("never", "200", start=10)
    wait_until(lambda: len(scene.lines("starts")) == 2)
    assert scene.ends() == 0
    assert said()[0] == "vLLM never answered after N s; it starts again in 0.01 s"


def test_a_server_that_is_not_ready_is_let_alone(supervised: Start, said: Said) -> None:
    scene = supervised("503")
    wait_until(lambda: len(scene.lines("looks")) > 20)
    assert scene.ends() == 0
    assert said() == []
    assert len(scene.lines("starts")) == 1


def test_what_a_dead_server_left_running_is_gone_before_the_next_start(supervised: Start) -> None:
    scene = supervised("orphans", "200")
    wait_until(lambda: len(scene.lines("starts")) == 2)
    (orphan,) = scene.lines("orphan")
    assert has_ended(int(orphan))


def test_each_start_has_a_folder_for_temporary_files_that_goes_with_it(supervised: Start) -> None:
    scene = supervised("dies", "200")
    wait_until(lambda: scene.lines("looks"))
    first, second = map(Path, scene.lines("starts"))
    assert (first.exists(), second.is_dir()) == (False, True)
    (second / "download").write_bytes(b"half")
    scene.ends()
    assert not second.exists()


def test_what_torch_has_compiled_is_where_the_next_start_finds_it(
    supervised: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    compiled = Path(default_cache_dir())  # as torch has it, in a process whose folder for temporary files this is
    scene = supervised("dies", "200")
    wait_until(lambda: scene.lines("looks"))
    monkeypatch.setattr("tempfile.tempdir", scene.lines("starts")[1])
    Path(default_cache_dir(), "kernel").touch()
    scene.ends()
    assert [file.name for file in compiled.iterdir()] == ["kernel"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_answer_waited_for(supervised: Start, number: signal.Signals) -> None:
    scene = supervised("polite")
    wait_until(lambda: scene.lines("looks"))
    scene.supervisor.ask_to_end(number)
    assert scene.returns() == 0
    assert scene.lines("asked") == [str(int(number))]
    assert len(scene.lines("starts")) == 1


def test_a_server_that_is_deaf_is_killed_when_its_time_is_over(supervised: Start) -> None:
    scene = supervised("deaf", stop=0.1)
    wait_until(lambda: scene.lines("looks"))
    assert scene.ends() == 0


def test_a_second_signal_kills_at_once(supervised: Start) -> None:
    scene = supervised("deaf", stop=10 * DEADLINE_S)
    wait_until(lambda: scene.lines("looks"))
    scene.supervisor.ask_to_end(signal.SIGINT)
    scene.supervisor.ask_to_end(signal.SIGINT)
    assert scene.returns() == 0


def test_a_pause_is_cut_short_by_a_signal(supervised: Start, said: Said) -> None:
    scene = supervised("exits 1", first_pause=10 * DEADLINE_S)
    wait_until(said)
    assert scene.ends() == 0
    assert len(scene.lines("starts")) == 1


def test_arguments_that_are_refused_end_it_and_are_told(supervised: Start, said: Said) -> None:
    assert supervised("usage no such option").returns() == 2
    assert said() == ["vLLM does not take its arguments, start it with others: fake: no such option"]


def test_a_start_that_the_system_refuses_is_tried_again(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by a disk without room: here there is no folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", f"import time; open({str(ready)!r}, 'w'); time.sleep(600)"]
    supervisor = Supervisor(command, os.environ, "127.0.0.1", 9, replace(QUICK, first_pause=0.5))
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    wait_until(said)
    (tmp_path / "full").mkdir()
    wait_until(ready.exists)
    supervisor.ask_to_end(signal.SIGTERM)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert ready.exists()
    assert "could not be started ([Errno 2] No such file or directory" in said()[0]


def test_a_process_that_supervises_ends_with_code_0_and_all_it_started(process: StartProcess) -> None:
    source = """
import os, signal, sys
from space_vllm.supervisor import Limits, Supervisor
child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
command = [sys.executable, "-c", child + "print('up', flush=True); time.sleep(600)"]
supervisor = Supervisor(command, os.environ, "127.0.0.1", 9, Limits())
signal.signal(signal.SIGTERM, lambda number, _: supervisor.ask_to_end(number))
sys.exit(supervisor.run())
"""
    parent = process([sys.executable, "-c", source])
    wait_until(lambda: "up" in parent.output())
    started = descendants(parent.process.pid)
    assert len(started) == 3
    parent.process.terminate()
    assert parent.wait(DEADLINE_S) == 0
    assert all(map(has_ended, started))


SUPERVISING = """
import os, signal, sys
from space_vllm.supervisor import Limits, Supervisor
child = "import os, sys; open(sys.argv[1], 'a').write('x'); print('line', flush=True); sys.exit(3)"
limits = Limits(first_pause=0.01, longest_pause=0.01, period=0.01)
supervisor = Supervisor([sys.executable, "-c", child, sys.argv[1]], os.environ, "127.0.0.1", 9, limits)
signal.signal(signal.SIGTERM, lambda number, _: supervisor.ask_to_end(number))
sys.exit(supervisor.run())
"""


@pytest.mark.parametrize("place", ["> >(true) 2>&1", "> /dev/full 2>&1", ">&- 2>&-"])
def test_a_process_whose_output_nobody_takes_starts_its_server_again_and_again(
    process: StartProcess, tmp_path: Path, place: str
) -> None:
    starts = tmp_path / "starts"
    parent = process(["bash", "-c", f'exec "$0" -c "$1" "$2" {place}', sys.executable, SUPERVISING, str(starts)])
    wait_until(lambda: starts.exists() and len(starts.read_text()) > 3)
    parent.process.terminate()
    assert parent.wait(DEADLINE_S) == 0


class Line(socketserver.StreamRequestHandler):
    """Answers every request with the first line of a response, and nothing without one."""

    line = b""

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(self.line)


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", Seen.HEALTHY),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Seen.ALIVE),
        (b"no HTTP\r\n", Seen.ALIVE),
        (b"", Seen.ALIVE),
    ],
)
def test_any_reaction_is_a_sign_of_life(line: bytes, seen: Seen) -> None:
    handler = type("Handler", (Line,), {"line": line})
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert look("127.0.0.1", server.server_address[1]) is seen
        thread.join()


def test_nobody_who_listens_and_nobody_who_answers_are_told_apart(
    free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look("127.0.0.1", free_port()) is Seen.REFUSED
    monkeypatch.setattr("space_vllm.supervisor._LOOK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        assert look("0.0.0.0", stopped.getsockname()[1]) is Seen.SILENT


class Dribble(socketserver.BaseRequestHandler):
    """A first part, and then byte after byte, each in time, until it is over."""

    beginning = b""
    over = threading.Event()

    def handle(self) -> None:
        self.request.sendall(self.beginning)
        with suppress(OSError):
            while not self.over.wait(0.01):
                self.request.sendall(b"x")


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: "])
def test_a_look_at_an_answer_without_an_end_has_one(beginning: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space_vllm.supervisor._LOOK_S", 0.2)
    over = threading.Event()
    handler = type("Handler", (Dribble,), {"beginning": beginning, "over": over})
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        watchdog = threading.Timer(DEADLINE_S, over.set)
        watchdog.start()
        assert look("127.0.0.1", server.server_address[1]) is Seen.SILENT
        assert not over.is_set(), "it was the look that ended"
        over.set()
        watchdog.cancel()
        thread.join()


def test_an_answer_that_arrives_in_pieces_is_one() -> None:
    class Pieces(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            for byte in b"HTTP/1.1 200 OK\r\n\r\n":
                self.request.sendall(bytes([byte]))

    with socketserver.TCPServer(("127.0.0.1", 0), Pieces) as server:
        server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert look("127.0.0.1", server.server_address[1]) is Seen.HEALTHY
        thread.join()


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_who_listens_on_every_address_is_looked_at_on_this_machine() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6) as listening:
        thread = threading.Thread(target=lambda: listening.accept()[0].close())
        thread.start()
        assert look("::", listening.getsockname()[1]) is Seen.ALIVE
        thread.join()


def watched(*looks: tuple[Seen, float], limits: Limits = NORMAL) -> Watch:
    """After looks of each kind for so many seconds."""
    watch = Watch(limits)
    for seen, seconds in looks:
        for _ in range(int(seconds / limits.period)):
            watch.note(seen)
    return watch


DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("looks", "flaw"),
    [
        ([(Seen.REFUSED, 3500)], None),
        ([(Seen.REFUSED, 3600)], "never answered"),
        ([(Seen.SILENT, 3600)], "never answered"),
        ([(Seen.REFUSED, 300), (Seen.ALIVE, DAY)], None),
        ([(Seen.HEALTHY, DAY), (Seen.SILENT, 90)], None),
        ([(Seen.HEALTHY, 5), (Seen.SILENT, 590)], None),
        ([(Seen.HEALTHY, 5), (Seen.SILENT, 590), (Seen.ALIVE, 5), (Seen.SILENT, 590)], None),
        ([(Seen.HEALTHY, 5), (Seen.SILENT, 600)], "did not answer any more"),
        ([(Seen.HEALTHY, DAY), (Seen.REFUSED, 10)], None),
        ([(Seen.ALIVE, 5), (Seen.REFUSED, 15)], "took no more connections"),
    ],
)
def test_patience_is_long_with_what_may_be_alive(looks: list[tuple[Seen, float]], flaw: str | None) -> None:
    assert watched(*looks).flaw == flaw


def test_steady_is_what_was_healthy_for_a_minute_whatever_came_then() -> None:
    assert not watched((Seen.HEALTHY, 55), (Seen.ALIVE, 5), (Seen.HEALTHY, 55)).was_steady
    assert watched((Seen.ALIVE, 5), (Seen.HEALTHY, 60), (Seen.REFUSED, 5)).was_steady


def test_pauses_double_from_a_second_to_a_minute() -> None:
    pauses = NORMAL.pauses()
    assert [next(pauses) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
