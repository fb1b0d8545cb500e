"""Curves over time, as an SVG: axes, one line per curve, a legend. Knows nothing of what they mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 900, 420, 70, 20, 60
_COLOURS = ("#0a7d4f", "#c0392b", "#2f6fd0", "#b07d00")
_TICKS = 6


@dataclass(frozen=True)
class Curve:
    name: str
    points: Sequence[tuple[float, float]]


def draw(curves: Sequence[Curve], across: str, up: str) -> str:
    """`across` and `up` are what the axes are called. The upper one starts at 0."""
    xs = [x for curve in curves for x, _ in curve.points]
    first, last = min(xs), max(xs)
    highest = max(max(y for curve in curves for _, y in curve.points), 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        right = _LEFT + (x - first) / (last - first or 1) * (_WIDTH - _LEFT - 20)
        return right, _HEIGHT - _BOTTOM - y / highest * (_HEIGHT - _BOTTOM - _TOP)

    parts = [f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>']
    for n in range(_TICKS + 1):
        x, y = first + n * (last - first) / _TICKS, n * highest / _TICKS
        parts.append(_text(*place(x, 0), f"{x:.3g}", "middle", 18))
        parts.append(_text(*place(first, y), f"{y:.3g} ", "end", 4))
        parts.append(_line([place(first, y), place(last, y)], "#dddddd"))
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(_line([place(x, max(y, 0)) for x, y in curve.points], colour, 2))
        parts.append(_text(_LEFT + 10 + 210 * number, _HEIGHT - 8, curve.name, "start", 0, colour))
    parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 26, across, "middle"))
    parts.append(_text(_LEFT, _TOP - 6, up, "start"))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg>\n'


def _line(points: Sequence[tuple[float, float]], colour: str, width: int = 1) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str, down: float = 0, colour: str = "#333333") -> str:
    place = f'x="{x:.1f}" y="{y + down:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text {place} font-family="sans-serif" font-size="12">{escape(text)}</text>'
