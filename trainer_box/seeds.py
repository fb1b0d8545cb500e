"""`make demo-seeds`: the demo on five seeds and once frozen, and whether learning is more than luck. Half an hour.

Knows the demo's command line and its report; the demo itself is `trainer_box.demo`.
"""

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from shared.types import Json
from trainer_box import report

SEEDS = range(5)
NEEDED = 4
FROZEN = ("--learning-rate", "0")
_REWARD = (("first", "+.3f"), ("last", "+.3f"), ("standard_error", ".3f"))


def main() -> int:
    console = Console()
    trained = [_run(["--seed", str(seed), *sys.argv[1:]]) for seed in SEEDS]
    frozen = _run([*FROZEN, *sys.argv[1:]])
    console.print(_table(trained, frozen))
    learned = sum(bool(run["learned"]) for run in trained)
    control = "rose" if frozen["learned"] else "did not rise"
    console.print(f"{learned} of {len(trained)} seeds learned; the frozen control {control}")
    return 0 if learned >= NEEDED and not frozen["learned"] else 1


def _run(arguments: list[str]) -> Json:
    """The report of one demo, which may exit non-zero: the frozen control does not learn."""
    before = _reports()
    subprocess.run([sys.executable, "-m", "trainer_box.local", "--no-ui", *arguments], check=False)
    new = _reports() - before
    if len(new) != 1:
        raise SystemExit(f"the demo with {' '.join(arguments)} left no report; see its message above")
    found: Json = json.loads(new.pop().read_text())
    return found


def _reports() -> set[Path]:
    return set(Path("runs").glob(f"demo-*/{report.FILE}"))


def _table(trained: list[Json], frozen: Json) -> Table:
    table = Table()
    for column in (
        "run",
        "first ten",
        "last ten",
        "standard error",
        "learned",
        "greedy before",
        "greedy after",
        "train s",
    ):
        table.add_column(column, justify="right")
    for name, run in [*((f"seed {seed}", run) for seed, run in zip(SEEDS, trained, strict=True)), ("frozen", frozen)]:
        reward, rates = run["reward"] or {}, run["greedy_solve_rate"]  # a short run has no rewards to compare
        table.add_row(
            name,
            *(format(reward[key], form) if reward else "-" for key, form in _REWARD),
            str(run["learned"]),
            f"{rates['before']:.3f}",
            f"{rates['after']:.3f}",
            f"{run['seconds']['train']:.0f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
