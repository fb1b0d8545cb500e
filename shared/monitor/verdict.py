"""The state of a run in one word and a few sentences, the most important first. Pure: the time is passed in."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from shared.learning import LEAST_STEPS, WINDOW, Learning, learning
from shared.monitor.finding import Finding, Level, unstopped
from shared.monitor.numbers import value_of
from shared.monitor.pace import LEAST_SILENCE_S, ahead, silence, usual_interval
from shared.monitor.replicas import Replica, environment_line, finding_of, replicas_of
from shared.monitor.snapshot import Snapshot
from shared.monitor.words import age, counted, cut, duration, listed
from shared.types import Manifest

_RANK: tuple[Level, ...] = ("bad", "note", "wait", "good")


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
    unreadable = () if snapshot.run is None else (f"{unstopped(sentence)}." for sentence in snapshot.unreadable)
    notes = (*others, *unreadable, *_facts(snapshot, now))
    return Verdict(first.level, first.state, cut(first.sentence), tuple(map(cut, notes)))


def outcome(snapshot: Snapshot) -> Learning | None:
    return learning([value_of(manifest, "reward") for manifest in snapshot.manifests])


def _findings(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """At least one."""
    if snapshot.problem:
        yield Finding(
            "bad", "bucket unreadable", f"Bucket {snapshot.bucket} cannot be read: {unstopped(snapshot.problem)}."
        )
    for sentence in snapshot.damaged:
        yield Finding("bad", "damaged file", f"{unstopped(sentence)}.")
    of_run = list(_of_run(snapshot, now))
    if snapshot.newest is None:  # replicas have nothing to be compared with yet
        yield from of_run
    yield from _of_replicas(snapshot, now)
    if snapshot.environment is not None and snapshot.environment.problem:
        yield Finding("bad", "environment unreachable", environment_line(snapshot.environment))
    if snapshot.newest is not None:
        yield from of_run


def _of_run(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    run, newest = snapshot.run, snapshot.newest
    if run is None and not snapshot.problem:
        yield from _without_run(snapshot)
    elif run is not None and newest is None:
        for_long = age(run.created_at, now)
        long = f", for {duration(for_long)} now" if for_long is not None and for_long > LEAST_SILENCE_S else ""
        what = "is being read" if snapshot.unread else f"has no whole version yet: its trainer is starting{long}"
        yield Finding("wait", "starting", f"Run {run.run_id} {what}.")
    elif newest is not None:
        yield from _of_versions(snapshot, newest, now)


def _without_run(snapshot: Snapshot) -> Iterator[Finding]:
    for sentence in snapshot.unreadable:
        yield Finding("bad", "run unreadable", f"{unstopped(sentence)}.")
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
    if (skew := ahead(snapshot, now)) is not None:
        yield Finding(
            "note",
            "clocks differ",
            f"The clocks of the trainer and of this machine differ by about {duration(skew)}: version "
            f"{newest.version} is dated in the future.",
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
        return Finding("note", "stopped", f"Stopped at version {newest.version}: {unstopped(reason)}.")
    learned = {True: ", it learned", False: ", it did not learn", None: ""}[found.learned if found else None]
    return Finding("good", "finished", f"Finished with version {newest.version}{learned}.")


def _going_on(snapshot: Snapshot, newest: Manifest) -> Finding:
    found = outcome(snapshot)
    tail = f"version {newest.version}{_verified(replicas_of(snapshot), newest)}."
    if found is None:
        return Finding("good", "running", f"Running, {tail}")
    return (
        Finding("good", "learning", f"Learning, {tail}")
        if found.learned
        else Finding("note", "running", f"Running, but not learning so far, {tail}")
    )


def _verified(replicas: Sequence[Replica], newest: Manifest) -> str:
    """Said only if it is true of all, with the versions that they serve where one is not the newest."""
    if not replicas or not all(replica.verified and replica.state == "serving" for replica in replicas):
        return ""
    which = "all replicas" if len(replicas) > 1 else "the replica"
    versions = sorted({replica.version for replica in replicas if replica.version is not None})
    at = f" at version {listed([str(version) for version in versions])}" if versions != [newest.version] else ""
    return f", {which} verified{at}"


def _of_replicas(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    for replica in replicas_of(snapshot):
        if (finding := finding_of(replica, snapshot, now)) is not None:
            yield finding


def _facts(snapshot: Snapshot, now: datetime) -> Iterator[str]:
    newest, run = snapshot.newest, snapshot.run
    if newest is None or run is None:
        return
    since, usual = age(newest.created_at, now), usual_interval(snapshot)
    ago = f", {duration(since)} old" if since is not None and ahead(snapshot, now) is None else ""
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
