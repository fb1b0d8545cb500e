"""What a local run amounts to: from its step records to numbers, a verdict, a table and `report.json`."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from shared.learning import WINDOW, learning
from shared.types import Json
from trainer_box import sparsity

FILE = "report.json"
_COLUMNS = ("step", "reward", "solved", "version", "kind", "kB", "sparsity", "pause ms", "staleness", "ratio")


def summarise(steps: Sequence[Json], facts: Mapping[str, Any], folder: Path) -> Json:
    """The report, written to `folder` too: per run what the README shows and what the caller knows, per step as is.

    Means of the syncs are over the steps that have one.
    """
    outcome = learning([step["reward"] for step in steps])
    next_step = folder / sparsity.FILE
    summary = {
        "learned": outcome.learned if outcome else None,
        "reward": vars(outcome) if outcome else None,
        **facts,
        "mean_payload_bytes": _mean(steps, "payload_bytes"),
        "mean_sparsity": _mean(steps, "sparsity"),
        "mean_pause_ms": _mean(steps, "pause_ms"),
        "mean_importance_ratio": _mean(steps, "importance_ratio"),
        "next_step_sparsity": json.loads(next_step.read_text()) if next_step.is_file() else None,
        "steps": list(steps),
    }
    (folder / FILE).write_text(json.dumps(_finite(summary), indent=1, allow_nan=False) + "\n")
    return summary


def succeeded(summary: Json) -> bool:
    """Every version verified, and the loop learned if the run was long enough to tell."""
    return bool(summary["verified"]) and summary["learned"] is not False


def table(steps: Sequence[Json], title: str) -> Table:
    """One row per step."""
    out = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    for column in _COLUMNS:
        out.add_column(column, justify="right")
    for step in steps:
        out.add_row(*_row(step))
    return out


def show(console: Console, summary: Json, folder: Path) -> None:
    """Print the whole table and the figures of the run."""
    console.print(table(summary["steps"], summary["run_id"]))
    console.print("\n".join(_sentences(summary)), highlight=False)
    console.print(f"report: {folder / FILE}", highlight=False, soft_wrap=True)


def _row(step: Json) -> list[str]:
    return [
        str(step["step"]),
        _number(step["reward"], "+.3f"),
        _number(step["solve_rate"], ".2f"),
        str(step["version"]),
        *_sync_cells(step),
        _number(step["staleness"], ".1f"),
        _number(step["importance_ratio"], ".3f"),
    ]


def _sync_cells(step: Json) -> list[str]:
    if step.get("kind") is None:  # a later sync covered it, or will
        return ["-"] * 4
    return [
        step["kind"],
        _kilobytes(step.get("payload_bytes")),
        _number(step.get("sparsity"), ".3f"),
        _number(step.get("pause_ms"), ".0f"),
    ]


def _sentences(summary: Json) -> list[str]:
    if not summary["verified"]:
        return [f"not verified: {summary['problem']}"]
    rates, agreement, lines = summary["greedy_solve_rate"], summary["agreement"], []
    if reward := summary["reward"]:
        lines.append(
            f"{'learned' if summary['learned'] else 'did not learn'}: reward {reward['first']:+.3f} in the first "
            f"{WINDOW} steps, {reward['last']:+.3f} in the last, standard error {reward['standard_error']:.3f}"
        )
    lines += [
        f"{summary['versions']} versions published, every one verified; mean payload "
        f"{_kilobytes(summary['mean_payload_bytes'])} kB of a {_kilobytes(summary['model_bytes'])} kB model",
        f"greedy solve rate on the same {rates['games']} seeds: {rates['before']:.2f} before, {rates['after']:.2f} "
        "after training",
        f"served and trained policy: mean importance ratio {agreement['importance_ratio']:.4f}, largest "
        f"log-probability difference {agreement['max_logprob_difference']:.1e} over {agreement['tokens']} tokens",
    ]
    if found := summary["next_step_sparsity"]:
        rl_size = found["rl_size"]
        lines.append(
            f"sparsity {_number(summary['mean_sparsity'], '.3f')} at this learning rate; one more step at an RL-size "
            f"relative learning rate of {rl_size['learning_rate']:.1e} would have {rl_size['sparsity']:.3f}"
        )
    lines.append("seconds: " + ", ".join(f"{phase} {spent:.0f}" for phase, spent in summary["seconds"].items()))
    return lines


def _mean(steps: Sequence[Json], key: str) -> float | None:
    values = [step[key] for step in steps if step.get(key) is not None]
    return fmean(values) if values else None


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: such a number is written as null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _kilobytes(nbytes: float | None) -> str:
    return _number(None if nbytes is None else nbytes / 1e3, ".0f")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
