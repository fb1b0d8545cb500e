"""What the replicas and the environment said of themselves, against what the bucket holds. Pure.

An answer is another program's word: what is not of the expected type counts as not said.
"""

from dataclasses import dataclass
from datetime import datetime

from shared.monitor.finding import Finding, Level, unstopped
from shared.monitor.numbers import number_in, whole_in
from shared.monitor.pace import silence
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer
from shared.monitor.words import NOTHING, SHORT, age, counted, cut, duration
from shared.types import Json

COLUMNS = ("replica", "state", "run", "version", "lag", "verified", "fingerprint", "fallbacks", "last audit")


@dataclass(frozen=True)
class Replica:
    """`lag` is in versions, None for a replica of another run. `verified` says whether its fingerprint is that of the
    version's manifest; None when that cannot be told. `failed`, `undone` and `lost` are counts of syncs."""

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
    return [_row(replica, level_of(replica, snapshot, now), now) for replica in replicas_of(snapshot)]


def level_of(replica: Replica, snapshot: Snapshot, now: datetime) -> Level:
    finding = finding_of(replica, snapshot, now)
    return finding.level if finding else "good"


def finding_of(replica: Replica, snapshot: Snapshot, now: datetime) -> Finding | None:
    """None only for a replica that serves a version as it was published, and no old one."""
    return _of_state(replica) or _of_weights(replica, snapshot) or _of_lag(replica, snapshot, now)


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
    counts = counters if isinstance(counters, dict) else {}
    version, run_id, mark = whole_in(said.get("version")), _text(said.get("run_id")), _text(said.get("fingerprint"))
    is_same = snapshot.run is not None and run_id == snapshot.run.run_id
    return Replica(
        name,
        state=cut(_text(said.get("state")), SHORT),
        run_id=run_id,
        version=version,
        fingerprint=mark,
        lag=_lag(snapshot, version) if is_same else None,
        verified=_is_verified(snapshot, version, mark) if is_same else None,
        last_error=cut(_text(said.get("last_error"))),
        failed=whole_in(counts.get("failed")) or 0,
        undone=whole_in(counts.get("undone")) or 0,
        lost=whole_in(counts.get("lost")) or 0,
        recounts=whole_in(counts.get("recounts")) or 0,
        recounted_at=_text(said.get("recounted_at")),
    )


def _lag(snapshot: Snapshot, version: int | None) -> int | None:
    """Whole versions that are newer than this one."""
    if version is None or snapshot.newest is None or version > snapshot.newest.version:
        return None
    return sum(manifest.version > version for manifest in reversed(snapshot.manifests))


def _is_verified(snapshot: Snapshot, version: int | None, fingerprint: str) -> bool | None:
    manifest = next((m for m in reversed(snapshot.manifests) if m.version == version), None)
    return manifest.fingerprint == fingerprint if manifest else None


def _of_state(replica: Replica) -> Finding | None:
    """While it does not simply serve."""
    name, at = replica.name, f"it serves {_served(replica)}"
    why = f": {unstopped(replica.last_error)}." if replica.last_error else "."
    if replica.problem:
        return Finding("bad", "replica unreachable", f"{name}: {unstopped(replica.problem)}.")
    if replica.state == "dirty":
        lost = f"{name} has lost its weights and answers nothing until they are back"
        return Finding("bad", "replica dirty", f"{lost}{why}")
    if not replica.state and not replica.run_id:
        return Finding("bad", "says nothing", f"{name} answers, but does not say what it serves.")
    if replica.verified is False:
        mark = (
            f"with fingerprint {cut(replica.fingerprint, SHORT)}, not"
            if replica.fingerprint
            else "and does not say whether it is"
        )
        return Finding("bad", "not verified", f"{name} serves {_served(replica)} {mark} the published one.")
    if replica.state == "starting":
        return Finding("note", "replica starting", f"{name} is starting{why}")
    if replica.state == "catching_up":
        return Finding("note", "catching up", f"{name} is catching up, {at}{why}")
    if replica.state == "applying":
        return Finding("note", "paused", f"{name} is paused: it applies a version, {at}.")
    said = f"says that it is {replica.state}" if replica.state else "does not say what it does"
    return None if replica.state == "serving" else Finding("note", "unknown state", f"{name} {said}, {at}.")


def _of_weights(replica: Replica, snapshot: Snapshot) -> Finding | None:
    """Where it cannot be told whether they are the published ones."""
    run, newest, serves = snapshot.run, snapshot.newest, f"{replica.name} serves {_served(replica)}"
    if run is None or newest is None:
        return Finding("wait", "nothing to compare", f"{serves}; there is no version yet to compare it with.")
    if replica.run_id != run.run_id:
        level: Level = "note" if snapshot.has_ended or not replica.run_id else "bad"
        return Finding(
            level, "another run" if replica.run_id else "base model", f"{serves}, nothing of run {run.run_id}."
        )
    if replica.version is None:
        return Finding(
            "bad", "version unknown", f"{replica.name} does not say which version of run {run.run_id} it serves."
        )
    if replica.verified:
        return None
    if snapshot.unread:
        return Finding("wait", "being read", f"{serves}, whose manifest is still to be read.")
    return Finding("bad", "version unknown", f"{serves}, which the bucket does not have.")


def _of_lag(replica: Replica, snapshot: Snapshot, now: datetime) -> Finding | None:
    name, lag = replica.name, replica.lag
    if not lag:
        return None
    is_left = snapshot.has_ended or silence(snapshot, now) is not None
    if replica.last_error and (is_left or lag > 1):
        behind = f"{name} is {counted(lag, 'version')} behind and refused a newer one"
        return Finding("bad", "refused", f"{behind}: {unstopped(replica.last_error)}.")
    if snapshot.has_ended:
        return Finding("note", "left behind", f"{name} serves {_served(replica)}, not the last one of the run.")
    return Finding("note", "behind", f"{name} is {counted(lag, 'version')} behind.") if lag > 1 else None


def _served(replica: Replica) -> str:
    if not replica.run_id:
        return "the model that it was started with"
    version = "an unknown version" if replica.version is None else f"version {replica.version}"
    return version if replica.lag is not None else f"{version} of run {cut(replica.run_id, SHORT)}"


def _row(replica: Replica, level: Level, now: datetime) -> Json:
    verified = {True: "yes", False: "no", None: NOTHING}[replica.verified]
    cells = (
        replica.name,
        "unreachable" if replica.problem else replica.state or "unknown",
        cut(replica.run_id, SHORT) or NOTHING,
        NOTHING if replica.version is None else f"{replica.version}",
        NOTHING if replica.lag is None else f"{replica.lag}",
        verified,
        cut(replica.fingerprint, SHORT) or NOTHING,
        NOTHING if replica.problem else _fallbacks(replica),
        NOTHING if replica.problem else _audit(replica, now),
    )
    return {"level": level, "cells": cells, "error": replica.problem or replica.last_error}


def _fallbacks(replica: Replica) -> str:
    counts = {"failed": replica.failed, "undone": replica.undone, "lost": replica.lost}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"


def _audit(replica: Replica, now: datetime) -> str:
    since = age(replica.recounted_at, now)
    return f"{duration(since)} ago, {replica.recounts} in all" if since is not None else f"{replica.recounts} in all"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
