"""The row of tiles under the verdict: one number for each question, and what it is measured against. Pure."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import fmean, median

from shared.monitor.numbers import full_bytes, number_in, number_of, series
from shared.monitor.pace import LEAST_SILENCE_S
from shared.monitor.pauses import pauses_of
from shared.monitor.replicas import level_of, replicas_of
from shared.monitor.snapshot import Snapshot
from shared.monitor.words import NOTHING, age, duration, number, size
from shared.types import Json, Manifest

WINDOW = 10


def tiles(snapshot: Snapshot, now: datetime) -> list[Json]:
    """Each with label, value, note and level. Empty without a version."""
    newest = snapshot.newest
    if newest is None:
        return []
    return [
        _version(newest, now),
        _reward(snapshot),
        _solved(snapshot),
        _staleness(newest),
        _replicas(snapshot, now),
        _pause(snapshot),
        _payload(snapshot),
        _sparsity(snapshot),
        *_sessions(snapshot),
    ]


def _tile(label: str, value: str, note: str, level: str = "") -> Json:
    return {"label": label, "value": value, "note": note, "level": level}


def _version(newest: Manifest, now: datetime) -> Json:
    since, step, steps = age(newest.created_at, now), number_of(newest, "step"), number_of(newest, "max_steps")
    ago = f"{duration(since)} ago" if since is not None and since > -LEAST_SILENCE_S else ""
    of = f"step {step:.0f} of {steps:.0f}, " if step is not None and steps is not None else ""
    return _tile("Policy version", str(newest.version), of + ago)


def _reward(snapshot: Snapshot) -> Json:
    points = series(snapshot.manifests, "reward")
    last, first = _mean(points[-WINDOW:]), _mean(points[:WINDOW])
    level = "bad" if points and math.isnan(points[-1][1]) else ""
    value = "NaN" if level else number(last, "+.2f")
    return _tile("Reward", value, f"mean of the last {WINDOW}; first {WINDOW}: {number(first, '+.2f')}", level)


def _solved(snapshot: Snapshot) -> Json:
    points = series(snapshot.manifests, "environment/solved")
    last, first = _mean(points[-WINDOW:]), _mean(points[:WINDOW])
    return _tile("Solved", number(last, ".0%"), f"mean of the last {WINDOW}; first {WINDOW}: {number(first, '.0%')}")


def _staleness(newest: Manifest) -> Json:
    mean, limit = number_of(newest, "sample/staleness_mean"), number_of(newest, "sample/staleness_limit")
    dropped = number_of(newest, "sample/dropped_stale_total") or 0
    of = f"limit {limit:.0f} versions" if limit is not None else "versions"
    return _tile("Staleness", number(mean, ".1f"), f"{of}, {dropped:.0f} dropped", "note" if dropped else "")


def _replicas(snapshot: Snapshot, now: datetime) -> Json:
    replicas = replicas_of(snapshot)
    if not replicas:
        return _tile("Replica lag", NOTHING, "being asked" if snapshot.asked else "no replica is asked")
    lags = [replica.lag for replica in replicas if replica.lag is not None]
    verified = sum(replica.verified is True for replica in replicas)
    levels = {level_of(replica, snapshot, now) for replica in replicas}
    level = next((level for level in ("bad", "note", "wait") if level in levels), "good")
    lag = str(max(lags)) if lags else NOTHING
    return _tile("Replica lag", lag, f"versions; {verified} of {len(replicas)} verified", level)


def _pause(snapshot: Snapshot) -> Json:
    pauses = [value for _, value in pauses_of(snapshot)]
    usual = duration(median(pauses) / 1000) if pauses else NOTHING
    return _tile("Pause", duration(pauses[-1] / 1000) if pauses else NOTHING, f"of the last sync; median {usual}")


def _payload(snapshot: Snapshot) -> Json:
    deltas = [manifest for manifest in snapshot.manifests if manifest.kind == "delta"]
    whole = full_bytes(snapshot.run, snapshot.manifests)
    if not deltas:
        return _tile("Payload", NOTHING, "no delta yet")
    share = f"{100 * deltas[-1].nbytes / whole:.3g} % of {size(whole)}" if whole else "of the last delta"
    return _tile("Payload", size(deltas[-1].nbytes), share)


def _sparsity(snapshot: Snapshot) -> Json:
    deltas = [manifest for manifest in snapshot.manifests if manifest.kind == "delta"]
    value = f"{100 * deltas[-1].sparsity:.3g} %" if deltas else NOTHING
    return _tile("Sparsity", value, "of the elements unchanged")


def _sessions(snapshot: Snapshot) -> Iterator[Json]:
    if snapshot.environment is None:
        return
    said = snapshot.environment.document
    sessions, capacity = number_in(said.get("sessions")), number_in(said.get("capacity"))
    level = "bad" if snapshot.environment.problem else ""
    of = f"of {capacity:.0f} sessions open" if capacity is not None else "sessions open"
    yield _tile("Environment", number(sessions, ".0f"), of, level)


def _mean(points: Sequence[tuple[int, float]]) -> float | None:
    known = [value for _, value in points if not math.isnan(value)]
    return fmean(known) if known else None
