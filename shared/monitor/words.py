"""Numbers as people read them. Pure."""

import math
from datetime import datetime

NOTHING = "-"
SHORT = 40
"""Letters of what should be a word or a name."""


def size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5 or unit == "GB":  # what would be rounded to 1000 is 1 of the next
            break
        nbytes /= 1000
    return f"{nbytes:.3g} {unit}" if unit != "B" and nbytes < 999.5 else f"{nbytes:.0f} {unit}"


def duration(seconds: float) -> str:
    seconds = max(seconds, 0)
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 119.5:
        return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    if seconds < 119.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def number(value: float | None, form: str) -> str:
    """A dash where there is none."""
    return NOTHING if value is None or math.isnan(value) else format(value, form)


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def age(then: str, now: datetime) -> float | None:
    """Seconds since a time of a manifest; None for a text that is none."""
    try:
        return (now - datetime.strptime(then, "%Y-%m-%dT%H:%M:%S.%f%z")).total_seconds()
    except ValueError:
        return None


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def cut(text: str, most: int = 300) -> str:
    """What another program wrote, no longer than a page has room for."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most} characters more)"
