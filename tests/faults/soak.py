"""`python -m tests.faults.soak`: 500 syncs with random latency, failures and restarts, as a seed says.

Prints what was found. The exit code is 1 when the final weights are wrong, or something grew that should not.
"""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers.utils.logging import disable_progress_bar

from tests.faults.chance import Chance
from tests.faults.long_run import PATIENCE_S, LongRun
from tests.faults.meter import Sample
from tests.faults.stage import stage

MOST = Sample(megabytes=32.0, handles=4, threads=4)  # that a process may have more at the end than when it was warm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--syncs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vllm-kills", type=int, default=4)
    given = parser.parse_args()
    disable_progress_bar()
    started = time.monotonic()
    with TemporaryDirectory(prefix="soak-") as folder, stage("stand-in Hub", Path(folder)) as live:
        run = LongRun(live, given.syncs, given.vllm_kills, Chance(given.seed), _tell)
        run.play()
    print(report(run, given.seed, time.monotonic() - started), flush=True)
    return 0 if not flaws(run) else 1


def flaws(run: LongRun) -> list[str]:
    """What is not as promised."""
    found = [] if run.is_right else ["the final weights are wrong"]
    for name, meter in run.meters.items():
        grown = meter.growth()
        for what, most in vars(MOST).items():
            if vars(grown)[what] > most:
                found.append(f"{name}: {vars(grown)[what]:.0f} {what} more")
    if run.found is None or run.found.beyond:
        found.append(f"data beyond retention: {run.found.beyond if run.found else '?'}")
    if run.longest_wait_s > PATIENCE_S:
        found.append(f"a sync point waited {run.longest_wait_s:.0f} s")
    return found


def report(run: LongRun, seed: int, seconds: float) -> str:
    """A table of two columns."""
    rows = [
        (f"versions served, seed {seed}", str(len(run.acknowledged))),
        *((name, str(count)) for name, count in sorted(run.chance.counts.items())),
        ("final weights, in the Space and in the bucket", "equal to the bit" if run.is_right else "**wrong**"),
        ("longest wait of a sync point, of the seconds it may", f"{run.longest_wait_s:.0f} of {PATIENCE_S:.0f}"),
        ("longest from sync point to acknowledgement", f"{run.longest_sync_s:.0f} s"),
    ]
    for name, meter in run.meters.items():
        grown, last = meter.growth(), meter.last()
        held = f"{last.megabytes:.0f} MB ({grown.megabytes:+.1f}), {last.handles} handles ({grown.handles:+d})"
        rows.append((f"{name} at the end (grown)", f"{held}, {last.threads} threads ({grown.threads:+d})"))
    if run.found is not None:
        rows.append(("data files in the bucket (beyond retention)", f"{run.found.data} ({len(run.found.beyond)})"))
    rows += [("minutes", f"{seconds / 60:.0f}"), ("flaws", "; ".join(flaws(run)) or "none")]
    return "\n".join(["| | |\n|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
