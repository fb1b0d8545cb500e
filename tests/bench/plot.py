"""Curves over time, a panel for each of several cases, drawn by matplotlib. Knows nothing of what they mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    name: str
    points: Sequence[tuple[float, float]]


def draw(panels: Mapping[str, Sequence[Curve]], across: str, up: str, file: Path) -> None:
    """`across` and `up` are what the axes are called. The upper one starts at 0."""
    figure = Figure(figsize=(11, 3.6 * len(panels)), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(len(panels), squeeze=False).flat, panels.items(), strict=True):
        for curve in curves:
            xs, ys = zip(*curve.points, strict=True)
            axes.plot(xs, ys, label=curve.name, linewidth=1.4)
        axes.set_title(title, loc="left")
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
