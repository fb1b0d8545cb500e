"""The state of a run in one word and a few sentences, the most important first. Pure: the time is passed in."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Literal

from shared.learning import LEAST_STEPS, WINDOW, Learning, learning
from shared.monitor.numbers import value_of
from shared.monitor.replicas import Replica, environment_line, replicas_of
from shared.monitor.snapshot import Snapshot
from shared.monitor.words import age, counted, duration
from shared.types import Manifest

Level = Literal["bad", "note", "wait", "good"]

_RANK: tuple[Level, ...] = ("bad", "note", "wait", "good")
_INTERVALS = 20
_PATIENCE = 3.0
_LEAST_SILENCE_S, _SILENCE_UNKNOWN_S = 60.0, 600.0


@dataclass(frozen=True)
class Finding:
    """`state` is the word for it."""

    level: Level
    state: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """The gravest finding, and all else that is worth a sentence."""

    level: Level
    state: str
    headline: str
    notes: tuple[str, ...]


def verdict(snapshot: Snapshot, now: datetime) -> Verdict:
    """`now` has a time zone."""
    found = sorted(_findings(snapshot, now), key=lambda finding: _RANK.index(finding.level))
    first, others = found[0], [finding.sentence for finding in found[1:]]
    unreadable = () if snapshot.run is None else (f"{_unstopped(sentence)}." for sentence in snapshot.unreadable)
    return Verdict(first.level, first.state, first.sentence, (*others, *unreadable, *_facts(snapshot, now)))


def usual_interval(snapshot: Snapshot) -> float | None:
    """Seconds from one version to the next, the median of the newest ones; None when there are too few to tell."""
    newest = snapshot.manifests[-_INTERVALS - 1 :]
    pairs = zip(newest, newest[1:], strict=False)
    known = [seconds for one, next_ in pairs if (seconds := _between(one, next_)) is not None]
    return median(known) if len(known) >= 2 else None


def silence(snapshot: Snapshot, now: datetime) -> float | None:
    """Seconds since the newest version, once that is longer than it should be."""
    since = age(snapshot.newest.created_at, now) if snapshot.newest else None
    if since is None or snapshot.has_ended:
        return None
    usual = usual_interval(snapshot)
    limit = _SILENCE_UNKNOWN_S if usual is None else max(_PATIENCE * usual, _LEAST_SILENCE_S)
    return since if since > limit else None


def outcome(snapshot: Snapshot) -> Learning | None:
    return learning([value_of(manifest, "reward") for manifest in snapshot.manifests])


def _findings(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """At least one."""
    if snapshot.problem:
        yield Finding(
            "bad", "bucket unreadable", f"Bucket {snapshot.bucket} cannot be read: {_unstopped(snapshot.problem)}."
        )
    for sentence in snapshot.damaged:
        yield Finding("bad", "damaged file", f"{_unstopped(sentence)}.")
    yield from _of_replicas(snapshot, now)
    if snapshot.environment is not None and snapshot.environment.problem:
        yield Finding("bad", "environment unreachable", environment_line(snapshot.environment))
    yield from _of_run(snapshot, now)


def _of_run(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    run, newest = snapshot.run, snapshot.newest
    if run is None and not snapshot.problem:
        yield from _without_run(snapshot)
    elif run is not None and newest is None:
        for_long = age(run.created_at, now)
        long = f", for {duration(for_long)} now" if for_long is not None and for_long > _LEAST_SILENCE_S else ""
        what = "is being read" if snapshot.unread else f"has no whole version yet: its trainer is starting{long}"
        yield Finding("wait", "starting", f"Run {run.run_id} {what}.")
    elif newest is not None:
        yield from _of_versions(snapshot, newest, now)


def _without_run(snapshot: Snapshot) -> Iterator[Finding]:
    for sentence in snapshot.unreadable:
        yield Finding("bad", "run unreadable", f"{_unstopped(sentence)}.")
    if snapshot.number == 0:
        yield Finding("wait", "reading", f"Bucket {snapshot.bucket} is being read.")
    elif snapshot.others:
        there = f"Bucket {snapshot.bucket} has no run {snapshot.pinned}; it has {', '.join(snapshot.others)}"
        yield Finding("note", "no such run", f"{there}: start a trainer with that id, or set another RUN_ID.")
    else:
        yield Finding(
            "wait", "no run yet", f"No run yet in bucket {snapshot.bucket}; start a trainer with this bucket."
        )


def _of_versions(snapshot: Snapshot, newest: Manifest, now: datetime) -> Iterator[Finding]:
    reward = value_of(newest, "reward")
    if reward is not None and math.isnan(reward):
        yield Finding(
            "bad", "NaN reward", f"The reward of version {newest.version} is not a number: read its games below."
        )
    if (silent := silence(snapshot, now)) is not None:
        usual = usual_interval(snapshot)
        rule = f", versions usually take {duration(usual)}" if usual is not None else ""
        yield Finding("bad", "stalled", f"Trainer silent for {duration(silent)}{rule}.")
    elif snapshot.has_ended and snapshot.end is not None:
        yield _ended(snapshot.end.reason, newest, outcome(snapshot))
    else:
        yield _going_on(snapshot, newest)


def _ended(reason: str, newest: Manifest, found: Learning | None) -> Finding:
    if reason:
        return Finding("note", "stopped", f"Stopped at version {newest.version}: {_unstopped(reason)}.")
    learned = {True: ", it learned", False: ", it did not learn", None: ""}[found.learned if found else None]
    return Finding("good", "finished", f"Finished with version {newest.version}{learned}.")


def _going_on(snapshot: Snapshot, newest: Manifest) -> Finding:
    found, replicas = outcome(snapshot), replicas_of(snapshot)
    verified = bool(replicas) and all(replica.verified and replica.state == "serving" for replica in replicas)
    which = "all replicas" if len(replicas) > 1 else "the replica"
    tail = f"version {newest.version}{f', {which} verified' if verified else ''}."
    if found is None:
        return Finding("good", "running", f"Running, {tail}")
    return (
        Finding("good", "learning", f"Learning, {tail}")
        if found.learned
        else Finding("note", "running", f"Running, but not learning so far, {tail}")
    )


def _of_replicas(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    for replica in replicas_of(snapshot):
        if (finding := _of_replica(replica, silence(snapshot, now) is not None)) is not None:
            yield finding


def _of_replica(replica: Replica, is_silent: bool) -> Finding | None:
    name, at = replica.name, f"it serves version {replica.version}"
    why = f": {_unstopped(replica.last_error)}." if replica.last_error else "."
    if replica.problem:
        return Finding("bad", "replica unreachable", f"{name}: {_unstopped(replica.problem)}.")
    if replica.state == "dirty":
        lost = f"{name} has lost its weights and answers nothing until they are back"
        return Finding("bad", "replica dirty", f"{lost}{why}")
    if replica.verified is False:
        return Finding(
            "bad",
            "not verified",
            f"{name} serves version {replica.version} with fingerprint {replica.fingerprint}, not the published one.",
        )
    if replica.state == "starting":
        return Finding("note", "replica starting", f"{name} is starting{why}")
    if replica.state == "catching_up":
        return Finding("note", "catching up", f"{name} is catching up, {at}{why}")
    if replica.state == "applying":
        return Finding("note", "paused", f"{name} is paused: it applies a version, {at}.")
    lag = replica.lag or 0
    if replica.last_error and lag and (is_silent or lag > 1):
        return Finding("bad", "refused", f"{name} is {counted(lag, 'version')} behind and refused a newer one{why}")
    return Finding("note", "behind", f"{name} is {counted(lag, 'version')} behind.") if lag > 1 else None


def _facts(snapshot: Snapshot, now: datetime) -> Iterator[str]:
    newest, run = snapshot.newest, snapshot.run
    if newest is None or run is None:
        return
    since, usual = age(newest.created_at, now), usual_interval(snapshot)
    ago = f", {duration(since)} old" if since is not None else ""
    pace = f"; a new one usually comes every {duration(usual)}" if usual is not None else ""
    yield f"Version {newest.version} of run {run.run_id} is the newest{ago}{pace}."
    yield _learning_fact(snapshot)
    if snapshot.unread:
        yield f"{counted(snapshot.unread, 'version')} of it are still to be read."


def _learning_fact(snapshot: Snapshot) -> str:
    found = outcome(snapshot)
    if found is None:
        return f"Whether it learns can be told from {LEAST_STEPS} versions with a reward on."
    return (
        f"Reward {found.first:+.2f} in the first {WINDOW} versions, {found.last:+.2f} in the last "
        f"(standard error {found.standard_error:.2f})."
    )


def _between(one: Manifest, next_: Manifest) -> float | None:
    try:
        return (datetime.fromisoformat(next_.created_at) - datetime.fromisoformat(one.created_at)).total_seconds()
    except (ValueError, TypeError):
        return None


def _unstopped(sentence: str) -> str:
    return sentence.strip().rstrip(".")
