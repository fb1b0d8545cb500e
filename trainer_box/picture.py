"""`report.png`: what `report.json` holds, drawn. Knows the report's fields, nothing of where they come from."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shared.types import Json

FILE = "report.png"
_PANELS = (
    ("reward", "Reward", "mean of a step's rollouts", 1.0),
    ("payload_bytes", "Payload", "kB of the version's file", 1e-3),
    ("pause_ms", "Pause", "ms with no token generated", 1.0),
    ("staleness", "Staleness", "versions behind, mean of a step's samples", 1.0),
)
_INK, _LINE, _PAUSE = "#3f3f46", "#2563eb", "#dc2626"


def draw(summary: Json, folder: Path) -> Path:
    """One panel for each of reward, payload, pause and staleness, over the training steps; returns the file."""
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    figure.suptitle(_title(summary), color=_INK, fontsize=11)
    for axes, (key, title, unit, scale) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
        _panel(axes, *_points(summary["steps"], key, scale), _PAUSE if key == "pause_ms" else _LINE)
        axes.set_title(title, loc="left", color=_INK, fontsize=10, fontweight="bold")
        axes.set_ylabel(unit, color=_INK, fontsize=8)
    figure.savefig(folder / FILE, dpi=110)
    return folder / FILE


def _points(steps: Sequence[Json], key: str, scale: float) -> tuple[list[int], list[float]]:
    """The steps that have this number; the others are gaps that the line bridges."""
    known = [(step["step"], step[key] * scale) for step in steps if _is_known(step.get(key))]
    return [number for number, _ in known], [value for _, value in known]


def _panel(axes: Axes, steps: list[int], values: list[float], colour: str) -> None:
    axes.plot(steps, values, color=colour, linewidth=1.4, marker=".", markersize=4)
    axes.set_xlabel("training step", color=_INK, fontsize=8)
    axes.tick_params(colors=_INK, labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if min(values, default=0) >= 0:
        axes.set_ylim(bottom=0)
    if not steps:
        axes.text(0.5, 0.5, "no value", ha="center", va="center", transform=axes.transAxes, color=_INK)


def _title(summary: Json) -> str:
    words = {True: "learned", False: "did not learn", None: "too short to tell whether it learned"}
    verified = "every version verified" if summary["verified"] else "NOT VERIFIED"
    return f"{summary['run_id']}: {words[summary['learned']]}, {verified}"


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
