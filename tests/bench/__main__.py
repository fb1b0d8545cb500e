"""`python -m tests.bench [PART ...]`: all parts, or those named; tables here, and rows in `benchmarks.json`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from tests.bench import (
    apply,
    classes,
    environment,
    growth,
    on_paper,
    pause,
    payload,
    receivers,
    stall,
    start,
    trained,
)
from tests.bench.rows import Result

OUTPUT = Path("benchmarks.json")
PARTS: dict[str, Callable[[], Result]] = {
    "payload": payload.run,
    "trained": trained.run,
    "classes": classes.run,
    "growth": growth.run,
    "on_paper": on_paper.run,
    "environment": environment.run,
    "apply": apply.run,
    "pause": pause.run,
    "stall": stall.run,
    "start": start.run,
    "receivers": receivers.run,
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in PARTS]:
        print(f"no part named {unknown[0]!r}; choose from {', '.join(PARTS)}", file=sys.stderr)
        return 2
    rows = []
    for name in names or PARTS:
        table, measured = PARTS[name]()
        Console().print(table)
        rows += [{"part": name, **row} for row in measured]
    OUTPUT.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
