"""Numbers out of manifests, by version, and no more of them than a plot can show. Pure.

Knows under which names a manifest holds the trainer's numbers, not what they mean.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from shared.types import End, Manifest, Run

Points = list[tuple[int, float]]
"""Version and value; NaN is a gap."""

MOST_POINTS = 500
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}

Item = TypeVar("Item")


def value_of(manifest: Manifest, key: str) -> float | None:
    """One of the trainer's numbers; NaN for one that is not finite, which a manifest holds as text; None for none."""
    return number_in(manifest.trainer.get(key))


def number_in(value: Any) -> float | None:
    if value in ("nan", "inf", "-inf"):
        return math.nan
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def series(manifests: Iterable[Manifest], key: str) -> Points:
    return [(m.version, value) for m in manifests if (value := value_of(m, key)) is not None]


def sync_series(manifests: Iterable[Manifest], end: End | None, key: str) -> Points:
    """A number of the syncs, each told by the version after it, the last one's by the end of the run."""
    told = [*(manifest.trainer for manifest in manifests), *([end.trainer] if end else [])]
    pairs = ((number_in(numbers.get("sync/version")), number_in(numbers.get(key))) for numbers in told)
    return [(int(version), value) for version, value in pairs if version is not None and value is not None]


def full_bytes(run: Run | None, manifests: Sequence[Manifest]) -> float | None:
    """Of the whole model: the newest anchor's, else by the dtype that the run's base is cast to."""
    for manifest in reversed(manifests):
        if manifest.kind == "anchor" and manifest.files:
            return manifest.nbytes
    width = _BYTES.get(run.base.dtype) if run else None
    return width * manifests[-1].total if width and manifests else None


def thin(items: Sequence[Item], limit: int = MOST_POINTS) -> list[Item]:
    """At most `limit` (at least 2) items, evenly spread, with the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[index * (len(items) - 1) // (limit - 1)] for index in range(limit)]
