"""How often versions come, and whether the next one is overdue. Pure: the time is passed in."""

from datetime import datetime
from statistics import median

from shared.monitor.snapshot import Snapshot
from shared.monitor.words import age
from shared.types import Manifest

LEAST_SILENCE_S = 60.0
_INTERVALS = 20
_PATIENCE = 3.0
_SILENCE_UNKNOWN_S = 600.0


def usual_interval(snapshot: Snapshot) -> float | None:
    """Seconds from one version to the next, the median of the newest ones; None when there are too few to tell."""
    newest = snapshot.manifests[-_INTERVALS - 1 :]
    pairs = zip(newest, newest[1:], strict=False)
    known = [seconds for one, next_ in pairs if (seconds := _between(one, next_)) is not None]
    return median(known) if len(known) >= 2 else None


def silence(snapshot: Snapshot, now: datetime) -> float | None:
    """Seconds since the newest version, once that is longer than it should be. Counted on this machine's own clock
    where the version was seen to come."""
    since = _since_newest(snapshot, now)
    if since is None or snapshot.has_ended:
        return None
    usual = usual_interval(snapshot)
    limit = _SILENCE_UNKNOWN_S if usual is None else max(_PATIENCE * usual, LEAST_SILENCE_S)
    return since if since > limit else None


def ahead(snapshot: Snapshot, now: datetime) -> float | None:
    """Seconds by which the trainer's clock is ahead of this machine's, once that is more than chance."""
    since = age(snapshot.newest.created_at, now) if snapshot.newest else None
    return -since if since is not None and since < -LEAST_SILENCE_S else None


def _since_newest(snapshot: Snapshot, now: datetime) -> float | None:
    if snapshot.arrived_at is not None:
        return (now - snapshot.arrived_at).total_seconds()
    return age(snapshot.newest.created_at, now) if snapshot.newest else None


def _between(one: Manifest, next_: Manifest) -> float | None:
    try:
        return (datetime.fromisoformat(next_.created_at) - datetime.fromisoformat(one.created_at)).total_seconds()
    except (ValueError, TypeError):
        return None
