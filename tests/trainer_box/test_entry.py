"""Ctrl-C while a command is still importing, in a real process: the sentence, the code, and no trace."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_box.entry import INTERRUPTED, run

SLOW = """
import time
print("importing", flush=True)
try:
    time.sleep(60)
except BaseException:
    raise RuntimeError
"""
CHATTY = """
import sys

def main():
    for stream in (sys.stdout, sys.stderr):
        print("x" * 9999, file=stream, flush=True)
    return 3
"""


def test_an_interrupted_import_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-c", "import sys; from trainer_box.entry import run; sys.exit(run('slow', 'gone'))"]
    paths = f"{Path(__file__).parents[2]}:{tmp_path}"
    process = subprocess.Popen(
        command, env={"PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1] == "gone\n"
    assert process.returncode == INTERRUPTED


def test_a_command_whose_output_nobody_takes_ends_with_its_own_code(tmp_path: Path) -> None:
    """Progress bars of libraries and the lines of the command itself."""
    (tmp_path / "chatty.py").write_text(CHATTY)
    command = [sys.executable, "-c", "import sys; from trainer_box.entry import run; sys.exit(run('chatty', 'gone'))"]
    paths = f"{Path(__file__).parents[2]}:{tmp_path}"
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, env={"PYTHONPATH": paths}, stdout=full, stderr=full, timeout=60, check=False)
    assert ended.returncode == 3


@pytest.mark.parametrize(("body", "code"), [("return 3", 3), ("raise KeyboardInterrupt", INTERRUPTED)])
def test_the_exit_code_is_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], body: str, code: int
) -> None:
    name = f"command_{code}"
    (tmp_path / f"{name}.py").write_text(f"def main():\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for stream in ("stdout", "stderr"):  # which are replaced
        monkeypatch.setattr(sys, stream, vars(sys)[stream])
    assert run(name, "gone") == code
    assert capfd.readouterr().err == ("gone\n" if code == INTERRUPTED else "")
