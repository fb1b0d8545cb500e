"""What the replicas and the environment said of themselves, against what the bucket holds. Pure.

An answer is another program's word: what is not of the expected type counts as not said.
"""

from dataclasses import dataclass
from datetime import datetime

from shared.monitor.numbers import number_in, whole_in
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer
from shared.monitor.words import NOTHING, age, duration
from shared.types import Json

COLUMNS = ("replica", "state", "run", "version", "lag", "verified", "fingerprint", "fallbacks", "last audit")


@dataclass(frozen=True)
class Replica:
    """`lag` is in versions, None for a replica of another run. `verified` says whether its fingerprint is that of the
    version's manifest; None when that cannot be told. `fallbacks` are syncs that failed, were undone, or lost."""

    name: str
    problem: str = ""
    state: str = ""
    run_id: str = ""
    version: int | None = None
    fingerprint: str = ""
    lag: int | None = None
    verified: bool | None = None
    last_error: str = ""
    failed: int = 0
    undone: int = 0
    lost: int = 0
    recounts: int = 0
    recounted_at: str = ""


def replicas_of(snapshot: Snapshot) -> list[Replica]:
    return [_replica(name, answer, snapshot) for name, answer in snapshot.replicas.items()]


def rows(snapshot: Snapshot, now: datetime) -> list[Json]:
    """For the table, under COLUMNS, each with a `level` and the replica's last `error`."""
    return [_row(replica, now) for replica in replicas_of(snapshot)]


def line(snapshot: Snapshot) -> str:
    """What stands in the place of the table while there are no answers."""
    if snapshot.asked:
        return "The replicas are being asked."
    return "No replica is asked. The monitor asks those that it is given with --vllm-url."


def environment_line(answer: Answer | None) -> str:
    """Empty while it is not asked."""
    if answer is None:
        return ""
    if answer.problem:
        return f"Environment: {answer.problem}."
    said = answer.document
    sessions, capacity = number_in(said.get("sessions")), number_in(said.get("capacity"))
    if sessions is None or capacity is None:
        return "Environment: it does not say how many sessions are open."
    line = f"Environment: {sessions:.0f} of {capacity:.0f} sessions are open"
    step_ms = said.get("step_ms")
    median = number_in(step_ms.get("p50")) if isinstance(step_ms, dict) else None
    line += f", a step takes {median:.1f} ms (median)" if median is not None else ""
    refused = said.get("refused")
    full = number_in(refused.get("capacity")) if isinstance(refused, dict) else None
    return line + (f"; {full:.0f} were refused because all seats were taken." if full else ".")


def _replica(name: str, answer: Answer, snapshot: Snapshot) -> Replica:
    if answer.problem:
        return Replica(name, problem=answer.problem)
    said, counters = answer.document, answer.document.get("counters")
    counted = counters if isinstance(counters, dict) else {}
    version, run_id, mark = whole_in(said.get("version")), _text(said.get("run_id")), _text(said.get("fingerprint"))
    is_same = snapshot.run is not None and run_id == snapshot.run.run_id
    return Replica(
        name,
        state=_text(said.get("state")) or "unknown",
        run_id=run_id,
        version=version,
        fingerprint=mark,
        lag=_lag(snapshot, version) if is_same else None,
        verified=_is_verified(snapshot, version, mark) if is_same else None,
        last_error=_text(said.get("last_error")),
        failed=whole_in(counted.get("failed")) or 0,
        undone=whole_in(counted.get("undone")) or 0,
        lost=whole_in(counted.get("lost")) or 0,
        recounts=whole_in(counted.get("recounts")) or 0,
        recounted_at=_text(said.get("recounted_at")),
    )


def _lag(snapshot: Snapshot, version: int | None) -> int | None:
    """Whole versions that are newer than this one."""
    if version is None or snapshot.newest is None:
        return None
    return sum(manifest.version > version for manifest in reversed(snapshot.manifests))


def _is_verified(snapshot: Snapshot, version: int | None, fingerprint: str) -> bool | None:
    manifest = next((m for m in reversed(snapshot.manifests) if m.version == version), None)
    return manifest.fingerprint == fingerprint if manifest else None


def level_of(replica: Replica) -> str:
    if replica.problem or replica.state == "dirty" or replica.verified is False:
        return "bad"
    if replica.state == "serving" and replica.lag in (0, 1):
        return "good"
    return "note"


def _row(replica: Replica, now: datetime) -> Json:
    verified = {True: "yes", False: "no", None: NOTHING}[replica.verified]
    cells = (
        replica.name,
        "unreachable" if replica.problem else replica.state,
        replica.run_id or NOTHING,
        NOTHING if replica.version is None else f"{replica.version}",
        NOTHING if replica.lag is None else f"{replica.lag}",
        verified,
        replica.fingerprint or NOTHING,
        NOTHING if replica.problem else _fallbacks(replica),
        NOTHING if replica.problem else _audit(replica, now),
    )
    return {"level": level_of(replica), "cells": cells, "error": replica.problem or replica.last_error}


def _fallbacks(replica: Replica) -> str:
    counts = {"failed": replica.failed, "undone": replica.undone, "lost": replica.lost}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"


def _audit(replica: Replica, now: datetime) -> str:
    since = age(replica.recounted_at, now)
    return f"{duration(since)} ago, {replica.recounts} in all" if since is not None else f"{replica.recounts} in all"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
