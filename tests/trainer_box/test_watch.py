"""Following a trainer to its end: its sync lines are shown, its records collected, and a dead unit ends the watch."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from shared.errors import SyncError
from tests.trainer_box.test_report import absorbed, step
from trainer_box.processes import Unit, Units
from trainer_box.watch import watch

TRAINER = """
import json, sys, time
folder, steps = sys.argv[1], json.loads(sys.argv[2])
print("loading weights")
def write(name, record):
    line = json.dumps(record)
    with open(f"{folder}/{name}.jsonl", "a") as file:
        file.write(line[:7]); file.flush(); time.sleep(0.1)
        file.write(line[7:] + "\\n")
of_sync = ("kind", "payload_bytes", "changed", "total", "sparsity", "pause_ms")
for step in steps:
    write("steps", {name: value for name, value in step.items() if name not in of_sync})
    if step["kind"]:
        write("syncs", {name: step[name] for name in ("version", *of_sync)})
        print(f"sync v{step['version']} delta", flush=True)
print("sparsity of one more step: 0.5")
sys.exit(int(sys.argv[3]))
"""
IDLE = "import time; time.sleep(600)"


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Units]:
    for name, source in (("trainer", TRAINER), ("idle", IDLE), ("dying", "raise SystemExit(3)")):
        (tmp_path / f"watched_{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("trainer_box.watch._POLL_S", 0.05)
    with Units(tmp_path) as entered:
        yield entered


def start_trainer(units: Units, folder: Path, steps: str, exit_code: int = 0) -> Unit:
    return units.start("trainer", "watched_trainer", [str(folder), steps, str(exit_code)], {})


def console() -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, width=120), output


@pytest.mark.parametrize("exit_code", [0, 1])
def test_all_records_of_a_trainer_are_collected_however_it_ends(units: Units, tmp_path: Path, exit_code: int) -> None:
    given = [step(1, 0.5), step(2, -0.5), absorbed(3, 0.0)]
    units.start("idle", "watched_idle", [], {})
    shown, output = console()
    trainer = start_trainer(units, tmp_path, json.dumps(given), exit_code)
    assert watch(units, trainer, tmp_path, 3, shown) == given
    assert trainer.exit_code == exit_code
    text = output.getvalue()
    assert text.index("sync v1 delta") < text.index("sync v2 delta") < text.index("sparsity of one more step: 0.5")
    assert "step 3 of 3" in text
    assert "loading weights" not in text


def test_another_unit_that_ends_ends_the_watch_with_its_last_words(units: Units, tmp_path: Path) -> None:
    units.start("dying", "watched_dying", [], {})
    trainer = units.start("idle", "watched_idle", [], {})
    with pytest.raises(SyncError, match="^dying ended with exit code 3"):
        watch(units, trainer, tmp_path, 2, console()[0])
