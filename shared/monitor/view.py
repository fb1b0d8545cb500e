"""A snapshot in words, rows and points. Pure functions: no bucket, no page, no clock but the one passed in."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeVar

import pandas as pd

from shared.monitor.poller import Snapshot
from shared.monitor.units import Answer
from shared.types import Manifest

MOST_POINTS = 500
MOST_ROWS = 50
COLUMNS = ("version", "kind", "payload", "changed %", "base", "fingerprint", "seconds")

Item = TypeVar("Item")


def verdict(snapshot: Snapshot, now: datetime) -> str:
    """The state of the run in one or two sentences. `now` has a time zone."""
    state = _run_state(snapshot, now)
    if not snapshot.problem:
        return state
    sentence = f"Bucket {snapshot.bucket} cannot be read: {snapshot.problem.rstrip('.')}."
    return f"{sentence} Last known: {state}" if snapshot.run else sentence


def unit_lines(snapshot: Snapshot) -> str:
    """One sentence per unit that was asked."""
    newest = snapshot.manifests[-1] if snapshot.manifests else None
    sentences = {"vLLM Space": lambda answer: _vllm(answer, newest), "Environment": _environment}
    return " ".join(sentences[name](answer) for name, answer in snapshot.units.items())


def rewards(manifests: Sequence[Manifest]) -> pd.DataFrame:
    """Columns version, reward. A reward that is not a number is a gap."""
    return _points("reward", ((m.version, reward) for m in manifests if (reward := reward_of(m)) is not None))


def payloads(manifests: Sequence[Manifest]) -> pd.DataFrame:
    """Columns version, bytes; deltas only, since an anchor would flatten them."""
    return _points("bytes", ((m.version, m.nbytes) for m in manifests if m.kind == "delta"))


def sparsities(manifests: Sequence[Manifest]) -> pd.DataFrame:
    """Columns version, sparsity; deltas only."""
    return _points("sparsity", ((m.version, m.sparsity) for m in manifests if m.kind == "delta"))


def payload_line(manifests: Sequence[Manifest]) -> str:
    """Deltas against anchors, in words."""
    deltas = [m.nbytes for m in manifests if m.kind == "delta"]
    anchors = [m for m in manifests if m.kind == "anchor"]
    parts = []
    if anchors:
        newest = anchors[-1]
        parts.append(f"Anchors: {len(anchors)}, the newest is version {newest.version} with {size(newest.nbytes)}.")
    if deltas:
        parts.append(f"Deltas: {len(deltas)}, {size(sum(deltas) / len(deltas))} on average.")
    return " ".join(parts)


def table(manifests: Sequence[Manifest]) -> list[list[str]]:
    """The newest versions, the newest first, under COLUMNS."""
    return [_row(manifest) for manifest in reversed(manifests[-MOST_ROWS:])]


def reward_of(manifest: Manifest) -> float | None:
    """The step's reward; NaN for one that is not finite (a manifest holds it as text), None where there is none."""
    value = manifest.trainer.get("reward")
    if value in ("nan", "inf", "-inf"):
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def thin(items: Sequence[Item], limit: int = MOST_POINTS) -> list[Item]:
    """At most `limit` (at least 2) items, evenly spread, with the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[index * (len(items) - 1) // (limit - 1)] for index in range(limit)]


def size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _run_state(snapshot: Snapshot, now: datetime) -> str:
    if snapshot.number == 0:
        return f"Bucket {snapshot.bucket} is being read."
    if snapshot.run is None:
        return f"No run yet in bucket {snapshot.bucket}; start a trainer with this bucket."
    if not snapshot.manifests:
        return f"Run {snapshot.run.run_id} has no whole version yet."
    newest = snapshot.manifests[-1]
    parts = [f"Run {snapshot.run.run_id}, version {newest.version}"]
    if (created := _time(newest.created_at)) is not None:
        parts.append(f"{duration((now - created).total_seconds())} since the last")
    reward = reward_of(newest)
    if reward is not None:
        parts.append("its reward is not a number" if math.isnan(reward) else f"reward {reward:+.3f}")
    return ", ".join(parts) + "."


def _vllm(answer: Answer, newest: Manifest | None) -> str:
    if answer.problem:
        return f"vLLM Space: {answer.problem}."
    said, state = answer.document, answer.document.get("state", "unknown")
    version = said.get("version")
    if not isinstance(version, int):
        return f"The vLLM Space serves no version of a run yet, state {state}."
    lag = newest.version - version if newest is not None and newest.run_id == said.get("run_id") else 0
    behind = f", {lag} behind the newest" if lag > 0 else ""
    error = f" Its last error: {said['last_error']}" if said.get("last_error") else ""
    return f"The vLLM Space serves version {version} of run {said.get('run_id')}{behind}, state {state}.{error}"


def _environment(answer: Answer) -> str:
    if answer.problem:
        return f"Environment: {answer.problem}."
    return f"The environment has {answer.document.get('sessions')} of {answer.document.get('capacity')} sessions open."


def _points(name: str, points: Iterable[tuple[int, float]]) -> pd.DataFrame:
    return pd.DataFrame(thin(list(points)), columns=["version", name])


def _row(manifest: Manifest) -> list[str]:
    return [
        str(manifest.version),
        manifest.kind,
        size(manifest.nbytes) if manifest.files else "by reference",
        f"{100 * (1 - manifest.sparsity):.3f}",
        "" if manifest.base_version is None else str(manifest.base_version),
        manifest.fingerprint,
        f"{sum(manifest.seconds.values()):.2f}",
    ]


def _time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z")
    except ValueError:
        return None
