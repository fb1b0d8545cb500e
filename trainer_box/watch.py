"""Shows a training run while it goes on: the trainer's lines as they come, and a table of its newest steps."""

import json
import time
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.live import Live

from shared.errors import SyncError
from shared.types import Json
from trainer_box.processes import Unit, Units
from trainer_box.report import table
from trainer_box.step_log import FILE, SYNCS, joined

_POLL_S = 0.5
_ROWS = 10
_SHOWN = ("sync ", "rollouts ", "sparsity ", "error: ")


def watch(units: Units, trainer: Unit, folder: Path, total: int, console: Console) -> list[Json]:
    """Follow the trainer to its end and return its steps, each with its sync.

    Raises SyncError as soon as another unit ends.
    """
    steps, syncs = list[Json](), list[Json]()
    for name in (FILE, SYNCS):
        (folder / name).touch()
    with (
        trainer.log.open("rb") as output,
        (folder / FILE).open("rb") as step_file,
        (folder / SYNCS).open("rb") as sync_file,
        Live(console=console) as live,
    ):
        while True:
            ended = trainer.exit_code is not None
            for line in _new_lines(output):
                if line.startswith(_SHOWN):
                    console.print(line, highlight=False, soft_wrap=True)
            steps += map(json.loads, _new_lines(step_file))
            syncs += map(json.loads, _new_lines(sync_file))
            live.update(table(joined(steps, syncs)[-_ROWS:], f"step {len(steps)} of {total}"))
            if ended:
                return joined(steps, syncs)
            if dead := units.dead(but=trainer):
                raise SyncError(dead.obituary())
            time.sleep(_POLL_S)


def _new_lines(file: BinaryIO) -> list[str]:
    """Complete lines since the last call; a line that is still being written stays for the next."""
    lines: list[str] = []
    while True:
        start, raw = file.tell(), file.readline()
        if not raw.endswith(b"\n"):
            file.seek(start)
            return lines
        lines.append(raw.decode(errors="replace").rstrip("\n"))
