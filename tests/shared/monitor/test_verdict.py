"""What the page says of a snapshot first, by table."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from shared.monitor import replicas, tiles
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer
from shared.monitor.verdict import Verdict, verdict
from shared.types import End
from tests.shared.monitor.runs import NOW, at, chain, manifest, run, serving, showing

NOTHING = Snapshot("local:/b", number=1)
A, B = "Replica A", "Replica B"


def learning(count: int = 43, by: float = 1.0, every_s: float = 20) -> Snapshot:
    """A run whose rewards rise by so much in all."""
    rising = [
        replace(one, trainer={"reward": by * one.version / count + 0.02 * (one.version % 2)})
        for one in chain(count, every_s)
    ]
    return showing(*rising)


def said(snapshot: Snapshot) -> Verdict:
    return verdict(snapshot, NOW)


@pytest.mark.parametrize(
    ("snapshot", "level", "state", "headline"),
    [
        (Snapshot("local:/b"), "wait", "reading", "Bucket local:/b is being read."),
        (NOTHING, "wait", "no run yet", "No run yet in bucket local:/b; start a trainer with this bucket."),
        (
            replace(NOTHING, pinned="typo", others=("r1", "r2")),
            "note",
            "no such run",
            "Bucket local:/b has no run typo; it has r1, r2: start a trainer with that id, or set another RUN_ID.",
        ),
        (
            replace(NOTHING, unreadable=("r0/run.json has format 1.",)),
            "bad",
            "run unreadable",
            "r0/run.json has format 1.",
        ),
        (
            replace(NOTHING, problem="HTTP 403: the token lacks access; make another."),
            "bad",
            "bucket unreadable",
            "Bucket local:/b cannot be read: HTTP 403: the token lacks access; make another.",
        ),
        (
            showing(),
            "wait",
            "starting",
            "Run r1 has no whole version yet: its trainer is starting, for 60 min now.",
        ),
        (
            replace(showing(), run=run(age_s=5)),
            "wait",
            "starting",
            "Run r1 has no whole version yet: its trainer is starting.",
        ),
        (showing(*chain(3)), "good", "running", "Running, version 2."),
        (
            replace(learning(), replicas={A: serving(42)}),
            "good",
            "learning",
            "Learning, version 42, the replica verified.",
        ),
        (
            replace(learning(), replicas={A: serving(42), B: serving(41)}),
            "good",
            "learning",
            "Learning, version 42, all replicas verified at version 41 and 42.",
        ),
        (learning(by=0.0), "note", "running", "Running, but not learning so far, version 42."),
        (
            showing(*chain(9, every_s=20)[:-11], manifest(1, age_s=260), manifest(2, age_s=240)),
            "good",
            "running",
            "Running, version 2.",
        ),
        (
            showing(*(manifest(version, age_s=240 + 20 * (5 - version)) for version in range(1, 6))),
            "bad",
            "stalled",
            "Trainer silent for 4 min, versions usually take 20 s.",
        ),
        (showing(manifest(1, age_s=9000)), "bad", "stalled", "Trainer silent for 2 h."),
        (
            showing(*chain(3), manifest(3, reward="nan", age_s=1)),
            "bad",
            "NaN reward",
            "The reward of version 3 is not a number: read its games below.",
        ),
        (
            replace(learning(), end=End("r1", 42, at(0))),
            "good",
            "finished",
            "Finished with version 42, it learned.",
        ),
        (
            replace(learning(by=0.0, every_s=9000), end=End("r1", 42, at(0))),
            "good",
            "finished",
            "Finished with version 42, it did not learn.",
        ),
        (
            replace(showing(*chain(3)), end=End("r1", 2, at(0), "it was interrupted")),
            "note",
            "stopped",
            "Stopped at version 2: it was interrupted.",
        ),
        (replace(showing(*chain(3)), end=End("r1", 1, at(0))), "good", "running", "Running, version 2."),
        (
            replace(showing(*chain(3)), damaged=("r1/manifests/000001.json is not valid JSON",)),
            "bad",
            "damaged file",
            "r1/manifests/000001.json is not valid JSON.",
        ),
    ],
)
def test_the_gravest_finding_is_the_headline(snapshot: Snapshot, level: str, state: str, headline: str) -> None:
    found = said(snapshot)
    assert (found.level, found.state, found.headline) == (level, state, headline)


@pytest.mark.parametrize(
    ("answer", "level", "state", "headline"),
    [
        (
            Answer(problem="it cannot be reached (refused)"),
            "bad",
            "replica unreachable",
            "Replica A: it cannot be reached (refused).",
        ),
        (
            serving(5, state="dirty", last_error="the undo failed."),
            "bad",
            "replica dirty",
            "Replica A has lost its weights and answers nothing until they are back: the undo failed.",
        ),
        (Answer({"state": "starting"}), "note", "replica starting", "Replica A is starting."),
        (
            serving(2, state="catching_up"),
            "note",
            "catching up",
            "Replica A is catching up, it serves version 2.",
        ),
        (
            serving(4, state="applying"),
            "note",
            "paused",
            "Replica A is paused: it applies a version, it serves version 4.",
        ),
        (serving(2), "note", "behind", "Replica A is 3 versions behind."),
        (
            serving(3, last_error="v4: checksum differs"),
            "bad",
            "refused",
            "Replica A is 2 versions behind and refused a newer one: v4: checksum differs.",
        ),
        (
            serving(5, fingerprint="f" * 16),
            "bad",
            "not verified",
            "Replica A serves version 5 with fingerprint ffffffffffffffff, not the published one.",
        ),
        (
            serving(4, last_error="long ago"),
            "good",
            "running",
            "Running, version 5, the replica verified at version 4.",
        ),
        (
            serving(1, run_id="another"),
            "bad",
            "another run",
            "Replica A serves version 1 of run another, nothing of run r1.",
        ),
        (
            Answer({"version": None, "run_id": None, "state": "serving"}),
            "note",
            "base model",
            "Replica A serves the model that it was started with, nothing of run r1.",
        ),
        (
            Answer({"version": None, "run_id": None, "fingerprint": None, "state": "catching_up"}),
            "note",
            "catching up",
            "Replica A is catching up, it serves the model that it was started with.",
        ),
        (
            Answer({"version": "5", "state": 7, "counters": []}),
            "bad",
            "says nothing",
            "Replica A answers, but does not say what it serves.",
        ),
        (
            Answer({**serving(5).document, "version": "5"}),
            "bad",
            "version unknown",
            "Replica A does not say which version of run r1 it serves.",
        ),
        (
            serving(1_000_000),
            "bad",
            "version unknown",
            "Replica A serves version 1000000 of run r1, which the bucket does not have.",
        ),
        (
            serving(5, fingerprint=None),
            "bad",
            "not verified",
            "Replica A serves version 5 and does not say whether it is the published one.",
        ),
        (
            serving(5, state="staging"),
            "note",
            "unknown state",
            "Replica A says that it is staging, it serves version 5.",
        ),
    ],
)
def test_what_a_replica_says_is_weighed_too(answer: Answer, level: str, state: str, headline: str) -> None:
    snapshot = replace(showing(*chain(6)), replicas={A: answer})
    found = said(snapshot)
    assert (found.level, found.state, found.headline) == (level, state, headline)
    assert [row["level"] for row in replicas.rows(snapshot, NOW)] == [level]
    assert {tile["level"] for tile in tiles.tiles(snapshot, NOW) if tile["label"] == "Replica lag"} == {level}


@pytest.mark.parametrize(
    ("answer", "level", "headline"),
    [
        (serving(5), "good", "Finished with version 5."),
        (serving(4), "note", "Replica A serves version 4, not the last one of the run."),
        (serving(1, run_id="next"), "note", "Replica A serves version 1 of run next, nothing of run r1."),
        (
            serving(4, last_error="v5: checksum"),
            "bad",
            "Replica A is 1 version behind and refused a newer one: v5: checksum.",
        ),
    ],
)
def test_a_run_has_finished_well_once_its_last_version_is_served(answer: Answer, level: str, headline: str) -> None:
    found = said(replace(showing(*chain(6)), end=End("r1", 5, at(0)), replicas={A: answer}))
    assert (found.level, found.headline) == (level, headline)


def test_what_is_served_while_manifests_are_still_read_is_neither_right_nor_wrong() -> None:
    found = said(replace(showing(*chain(6)[3:]), unread=3, replicas={A: serving(2)}))
    assert (found.level, found.headline) == (
        "wait",
        "Replica A serves version 2, whose manifest is still to be read.",
    )


def test_an_end_of_another_run_ends_nothing() -> None:
    assert said(replace(showing(*chain(3)), end=End("another", 2, at(0)))).headline == "Running, version 2."


def test_a_clock_that_is_ahead_is_told_and_silence_is_counted_by_our_own() -> None:
    future = [replace(one, created_at=at(20 * (5 - one.version) - 3600)) for one in chain(6)]
    found = said(showing(*future))
    assert (found.level, found.state) == ("note", "clocks differ")
    assert "differ by about 60 min" in found.headline
    assert not any(" old" in note for note in found.notes)
    silent = said(showing(*future, arrived_at=NOW - timedelta(seconds=600)))
    assert silent.headline == "Trainer silent for 10 min, versions usually take 20 s."


def test_a_clock_that_is_behind_makes_no_silence() -> None:
    past = [replace(one, created_at=at(20 * (5 - one.version) + 3600)) for one in chain(6)]
    assert said(showing(*past)).state == "stalled"
    assert said(showing(*past, arrived_at=NOW - timedelta(seconds=5))).state == "running"


def test_a_long_text_is_cut_wherever_it_stands() -> None:
    found = said(
        replace(showing(*chain(6)), problem="P" * 4000, replicas={A: serving(5, state="dirty", last_error="E" * 4000)})
    )
    assert len(found.headline) < 340 and found.headline.endswith(" characters more)")
    assert max(map(len, found.notes)) < 340


def test_one_version_behind_counts_once_the_trainer_is_silent() -> None:
    silent = showing(*(manifest(version, age_s=240 + 20 * (5 - version)) for version in range(1, 6)))
    found = said(replace(silent, replicas={A: serving(4, last_error="v5: checksum differs")}))
    assert found.headline == "Replica A is 1 version behind and refused a newer one: v5: checksum differs."
    assert found.notes[0] == "Trainer silent for 4 min, versions usually take 20 s."


def test_an_unreadable_bucket_is_told_before_what_was_last_known() -> None:
    found = said(replace(showing(*chain(3)), problem="HTTP 429: too many requests."))
    assert (found.state, found.headline) == (
        "bucket unreadable",
        "Bucket local:/b cannot be read: HTTP 429: too many requests.",
    )
    assert found.notes[0] == "Running, version 2."


def test_the_notes_tell_age_pace_and_what_learning_is_judged_by() -> None:
    assert said(learning()).notes == (
        "Version 42 of run r1 is the newest, 20 s old; a new one usually comes every 20 s.",
        "Reward +0.11 in the first 10 versions, +0.88 in the last (standard error 0.03).",
    )
    assert said(showing(*chain(3), unread=7)).notes == (
        "Version 2 of run r1 is the newest, 20 s old; a new one usually comes every 20 s.",
        "Whether it learns can be told from 40 versions with a reward on.",
        "7 versions of it are still to be read.",
    )


def test_a_time_that_is_none_is_left_out() -> None:
    found = said(showing(replace(manifest(1, reward=math.pi), created_at="soon")))
    assert found.notes[0] == "Version 1 of run r1 is the newest."


def test_an_environment_that_is_away_is_a_finding() -> None:
    found = said(replace(showing(*chain(3)), environment=Answer(problem="it answered HTTP 503")))
    assert (found.state, found.headline) == ("environment unreachable", "Environment: it answered HTTP 503.")


def test_a_run_that_cannot_be_read_is_a_note_beside_one_that_can() -> None:
    found = said(showing(*chain(3), unreadable=("r0/run.json has format 1",)))
    assert (found.level, found.headline) == ("good", "Running, version 2.")
    assert "r0/run.json has format 1." in found.notes
