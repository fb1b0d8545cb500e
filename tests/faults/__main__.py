"""Plays the rows and prints their table. The exit code is 1 when a row breaks its promise."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import pytest
from transformers.utils.logging import disable_progress_bar

from tests.faults.places import Kind
from tests.faults.rows import ROWS, Row, play
from tests.faults.stage import Stage, stage
from tests.faults.table import Played, table

NAMES = list(dict.fromkeys(row.name for row in ROWS))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"all, or some of: {', '.join(NAMES)}")
    parser.add_argument("--bucket", choices=get_args(Kind), help="with this kind of bucket only")
    disable_progress_bar()
    given = parser.parse_args()
    if unknown := sorted(set(given.rows) - set(NAMES)):
        parser.error(f"there is no row {unknown[0]!r}; there are {', '.join(NAMES)}")
    rows = [row for row in ROWS if row.name in (given.rows or NAMES) and row.kind in (given.bucket or row.kind)]
    with TemporaryDirectory(prefix="faults-") as folder:
        found = {one.row: one for kind in get_args(Kind) for one in _played(kind, rows, Path(folder))}
    print(table([found[row] for row in rows]), flush=True)
    return 0 if all(one.is_kept for one in found.values()) else 1


def _played(kind: Kind, rows: Sequence[Row], folder: Path) -> Iterator[Played]:
    """On one stage; after a row that broke, on another."""
    with ExitStack() as stages:
        current: Stage | None = None
        for row in (row for row in rows if row.kind == kind):
            try:
                if current is None:
                    _tell(f"a Space on a bucket of kind {kind} starts")
                    current = stages.enter_context(stage(kind, folder / row.name / kind.replace(" ", "-")))
                played = Played(row, play(row, current, _tell))
            except (Exception, pytest.fail.Exception) as error:
                _tell(str(error) or repr(error))
                played, current = Played(row, None, (str(error) or repr(error)).splitlines()[0]), None
                stages.close()
            _tell(played.line())
            yield played


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
