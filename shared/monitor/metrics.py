"""Every plot of the page, in one place: its name, what it shows of which numbers, and how to read it.

The captions are all that the page says about a number. Pure.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd

from shared.monitor.numbers import MOST_POINTS, Points, full_bytes, series, sync_series, thin, value_of
from shared.monitor.pauses import pauses_of
from shared.monitor.snapshot import Snapshot
from shared.monitor.words import NOTHING
from shared.types import Json, Manifest

COLOURS = ("#2563eb", "#16a34a", "#ca8a04", "#9333ea", "#dc2626")
"""Of a plot's lines, in their order; seen on light and on dark."""

_COLUMNS = {"version": "int64", "value": "float64", "line": "str"}
"""With their types, which pandas cannot tell from NaN alone."""

Source = Callable[[Snapshot], Points]


@dataclass(frozen=True)
class Plot:
    """`lines` are what is drawn, by the name in the legend; with one line there is no legend. `form` is how a value is
    written; `dots` are for values that are few."""

    name: str
    title: str
    unit: str
    caption: str
    lines: Mapping[str, Source]
    form: str = ".2f"
    dots: bool = False

    @property
    def colours(self) -> dict[str, str]:
        return dict(zip(self.lines, COLOURS, strict=False))

    def newest(self, snapshot: Snapshot) -> list[Json]:
        """The newest value of each line, in words."""
        values = {line: source(snapshot)[-1:] for line, source in self.lines.items()}
        return [
            {"line": line if len(self.lines) > 1 else "", "value": self._word(points), "colour": self.colours[line]}
            for line, points in values.items()
        ]

    def _word(self, points: Points) -> str:
        return ("NaN" if math.isnan(points[0][1]) else format(points[0][1], self.form)) if points else NOTHING

    def frame(self, snapshot: Snapshot) -> pd.DataFrame:
        """Columns version, value and line, of at most 500 points together. A line without points has one that is NaN:
        an open page gives colours and axes to what it was sent at first."""
        most = max(2, MOST_POINTS // len(self.lines))
        points = {line: thin(source(snapshot), most) for line, source in self.lines.items()}
        start = min((found[0][0] for found in points.values() if found), default=0)
        rows = [(version, value, line) for line in points for version, value in points[line] or [(start, math.nan)]]
        return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)


def _trained(key: str) -> Source:
    return lambda snapshot: series(snapshot.manifests, key)


def _dropped(snapshot: Snapshot) -> Points:
    """TRL tells of them only in steps that have some."""
    steps = [m for m in snapshot.manifests if value_of(m, "reward") is not None]
    return [(m.version, value_of(m, "sample/dropped_stale_total") or 0.0) for m in steps]


def _synced(key: str, scale: float = 1.0) -> Source:
    return lambda snapshot: [(v, scale * value) for v, value in sync_series(snapshot.manifests, snapshot.end, key)]


def _of(kind: str, value: Callable[[Manifest], float]) -> Source:
    def points(snapshot: Snapshot) -> Points:
        extra = [m for m in snapshot.extra_anchors.values() if kind == "anchor"]
        found = [m for m in (*snapshot.manifests, *extra) if m.kind == kind and m.files]
        return sorted((m.version, value(m)) for m in found)

    return points


def _share_of_model(snapshot: Snapshot) -> Points:
    whole = full_bytes(snapshot.run, snapshot.manifests)
    deltas = [m for m in snapshot.manifests if m.kind == "delta"]
    return [(m.version, 100 * m.nbytes / whole) for m in deltas] if whole else []


def _bytes_per_change(snapshot: Snapshot) -> Points:
    deltas = [m for m in snapshot.manifests if m.kind == "delta"]
    return [(m.version, m.nbytes / m.changed) for m in deltas if m.changed]


LEARNING = (
    Plot(
        "reward",
        "Reward",
        "mean of the rollouts",
        "Rises over tens of steps when it learns. One step says little: look at the trend.",
        {"reward": _trained("reward")},
        "+.2f",
    ),
    Plot(
        "parts",
        "Reward parts",
        "mean of the rollouts",
        "What the reward is made of. Only one part rising may be a trick: read some games.",
        {name: _trained(f"environment/reward_{name}") for name in ("solved", "greens", "yellows", "turns", "invalid")},
        "+.2f",
    ),
    Plot(
        "solved",
        "Solve rate",
        "share of the rollouts",
        "The share of games that were won. It is what the reward stands for.",
        {"solved": _trained("environment/solved")},
        ".0%",
    ),
    Plot(
        "spread",
        "Reward spread",
        "standard deviation",
        "Within a group. At 0 all rollouts of a group paid alike, and there is nothing to learn from them.",
        {"spread": _trained("reward_std")},
    ),
    Plot(
        "entropy",
        "Entropy",
        "nats per token",
        "How much the policy still tries. Falling slowly is fine; near 0 it has collapsed.",
        {"entropy": _trained("entropy")},
    ),
    Plot(
        "ratio",
        "Importance ratio",
        "trainer / server",
        "Should sit at 1.000. Away from it, server and trainer do not have the same policy.",
        {"ratio": _trained("ratio")},
        ".4f",
    ),
    Plot(
        "staleness",
        "Staleness",
        "versions",
        "How old the samples were. At its limit, samples are dropped and training waits for the rollouts.",
        {
            "mean": _trained("sample/staleness_mean"),
            "largest": _trained("sample/staleness_max"),
            "limit": _trained("sample/staleness_limit"),
        },
        ".1f",
    ),
    Plot(
        "dropped",
        "Dropped samples",
        "samples of the step",
        "Older than the limit when they arrived. More than a few: rollouts are too slow, or versions come too often.",
        {"dropped": _dropped},
        ".0f",
    ),
)

SYNCS = (
    Plot(
        "payload",
        "Payload of deltas",
        "% of the full model",
        "What a version costs to send, against sending every weight. Anchors are apart: they would flatten this.",
        {"payload": _share_of_model},
        ".3g",
    ),
    Plot(
        "anchors",
        "Payload of anchors",
        "MB",
        "Full snapshots. One at the start is normal; one for each version means that no delta is found smaller.",
        {"anchors": _of("anchor", lambda manifest: manifest.nbytes / 1e6)},
        ".3g",
        dots=True,
    ),
    Plot(
        "sparsity",
        "Sparsity",
        "share of elements unchanged",
        "About 0.99 at the learning rates of RL on large models; a tiny model takes larger steps and is lower.",
        {"sparsity": _of("delta", lambda manifest: manifest.sparsity)},
        ".3f",
    ),
    Plot(
        "bytes",
        "Bytes per changed element",
        "bytes",
        "How well the change is packed. A plain index and value take 6; about 1 to 2 is usual.",
        {"bytes": _bytes_per_change},
    ),
    Plot(
        "pause",
        "Pause",
        "ms with no token generated",
        "All that a sync takes from the rollouts. The rest of it runs beside them.",
        {"pause": pauses_of},
        ".0f",
    ),
    Plot(
        "duration",
        "Sync, end to end",
        "seconds",
        "From the sync point to the acknowledgement. Longer than a step: versions are left out.",
        {"duration": _synced("sync/duration_s")},
    ),
)
