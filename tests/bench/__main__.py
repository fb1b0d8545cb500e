"""`python -m tests.bench [PART ...]`: all parts, or those named; tables here, and rows in `benchmarks.json`.

There a part's rows replace those that it wrote before, as soon as it has ended; those of other parts stay.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from shared.types import now
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
from tests.bench.rows import NotRun, Result, result

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
    for name in names or PARTS:
        table, measured = _run(name)
        Console().print(table)
        rows = [{"part": name, "measured_at": now(), **row} for row in measured]
        others = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else []
        rows += [row for row in others if row["part"] != name]
        OUTPUT.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _run(name: str) -> Result:
    try:
        return PARTS[name]()
    except ImportError as error:
        return result([NotRun(name, "all of it", str(error))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
