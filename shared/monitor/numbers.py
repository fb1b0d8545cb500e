"""Numbers out of manifests, by version, and no more of them than a plot can show. Pure.

Knows under which names a manifest holds the trainer's numbers, not what they mean.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from shared.document import LARGEST
from shared.types import End, Manifest, Run

Points = list[tuple[int, float]]
"""Version and value; NaN is a gap."""

MOST_POINTS = 500
NOT_FINITE = ("nan", "inf", "-inf")
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}

Item = TypeVar("Item")


def number_in(value: Any) -> float | None:
    """What may be counted with: finite, of at most 64 bits. Whatever another program wrote comes in through here."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
    return float(value) if is_number else None


def whole_in(value: Any) -> int | None:
    """A count or a version: whole and not negative."""
    number = number_in(value)
    return int(value) if number is not None and number >= 0 and number.is_integer() else None


def number_of(manifest: Manifest, key: str) -> float | None:
    """One of the trainer's numbers."""
    return number_in(manifest.trainer.get(key))


def value_of(manifest: Manifest, key: str) -> float | None:
    """The same, but NaN where the trainer has one that is not finite, which a manifest holds as text, or too large."""
    value = manifest.trainer.get(key)
    is_lost = value in NOT_FINITE if isinstance(value, str) else isinstance(value, int | float)
    number = number_in(value)
    return math.nan if number is None and is_lost and not isinstance(value, bool) else number


def series(manifests: Iterable[Manifest], key: str) -> Points:
    return [(m.version, value) for m in manifests if (value := value_of(m, key)) is not None]


def sync_series(manifests: Iterable[Manifest], end: End | None, key: str) -> Points:
    """A number of the syncs, each told by the version after it, the last one's by the end of the run."""
    told = [*(manifest.trainer for manifest in manifests), *([end.trainer] if end else [])]
    pairs = ((whole_in(numbers.get("sync/version")), number_in(numbers.get(key))) for numbers in told)
    return [(version, value) for version, value in pairs if version is not None and value is not None]


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
