"""Tiles, plots, tables and pictures of a snapshot, by what they hold."""

import math
from dataclasses import replace
from typing import Any

import pytest

from shared.monitor import chain, metrics, replicas, tiles, timeline, words
from shared.monitor.numbers import MOST_POINTS, full_bytes, thin
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer
from shared.types import End
from tests.shared.monitor import runs
from tests.shared.monitor.runs import MODEL_BYTES, NOW, at, manifest, run, serving, showing

PLOTS = {plot.name: plot for plot in (*metrics.LEARNING, *metrics.SYNCS)}
SYNC: dict[str, Any] = {"sync/version": 1, "sync/pause_ms": 80.0, "sync/stage_ms": 1200.0, "sync/duration_s": 3.5}


def synced() -> Snapshot:
    """Version 2 tells of the sync of version 1, and the end of that of version 2."""
    end = End("r1", 2, at(0), "", {**SYNC, "sync/version": 2, "sync/pause_ms": 90.0})
    return showing(manifest(0, "anchor", 0), manifest(1), manifest(2, **SYNC), end=end)


def of(name: str, snapshot: Snapshot) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = PLOTS[name].frame(snapshot).to_dict("list")
    return found


def tile(snapshot: Snapshot, label: str) -> tuple[str, str, str]:
    (found,) = [one for one in tiles.tiles(snapshot, NOW) if one["label"] == label]
    return found["value"], found["note"], found["level"]


def test_a_plot_has_version_value_and_line() -> None:
    snapshot = showing(manifest(1, reward=0.5), manifest(2, reward="nan"), manifest(3))
    found = of("reward", snapshot)
    assert (found["version"], found["line"]) == ([1, 2], ["reward", "reward"])
    assert found["value"][0] == 0.5 and math.isnan(found["value"][1])


def test_staleness_is_drawn_with_its_limit() -> None:
    numbers: dict[str, Any] = {"sample/staleness_mean": 1.5, "sample/staleness_max": 2.0, "sample/staleness_limit": 4}
    found = of("staleness", showing(manifest(1, **numbers)))
    assert dict(zip(found["line"], found["value"], strict=True)) == {"mean": 1.5, "largest": 2.0, "limit": 4.0}


def test_a_step_that_tells_of_no_dropped_samples_dropped_none() -> None:
    dropped: dict[str, Any] = {"reward": 0.5, "sample/dropped_stale_total": 3}
    assert of("dropped", showing(manifest(1, reward=0.5), manifest(2, **dropped), manifest(3)))["value"] == [0.0, 3.0]


def test_anchors_are_drawn_apart_from_deltas() -> None:
    versions = [manifest(0, "anchor", MODEL_BYTES), manifest(1), manifest(2, nbytes=6000)]
    snapshot = showing(*versions, extra_anchors={2: manifest(2, "anchor", 40_000)})
    assert (of("payload", snapshot)["version"], of("payload", snapshot)["value"]) == ([1, 2], [25.0, 30.0])
    assert (of("anchors", snapshot)["version"], of("anchors", snapshot)["value"]) == ([0, 2], [0.02, 0.04])
    assert of("sparsity", snapshot)["value"] == [0.975, 0.975]
    assert of("bytes", snapshot)["value"] == [20.0, 24.0]


def test_a_pause_is_told_by_the_next_version_by_the_end_or_by_a_replica() -> None:
    assert of("pause", synced())["value"] == [80.0, 90.0]
    assert of("duration", synced())["value"] == [3.5, 3.5]
    last = {"run_id": "r1", "version": 2, "pause_ms": 95.5}
    asked = replace(synced(), end=None, replicas={"Replica A": serving(2, last_sync=last)})
    assert of("pause", asked)["value"] == [80.0, 95.5]
    other = replace(synced(), end=None, replicas={"Replica A": serving(2, last_sync={**last, "run_id": "another"})})
    assert of("pause", other)["value"] == [80.0]


@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_has_a_caption_and_a_colour_and_its_lines_without_versions_too(name: str) -> None:
    plot = PLOTS[name]
    assert plot.caption.endswith(".") and len(plot.colours) == len(plot.lines)
    frame = plot.frame(showing())
    assert (list(frame["line"]), set(frame["version"])) == (list(plot.lines), {0})
    assert frame["value"].isna().all()
    assert [frame[name].dtype.kind for name in ("version", "value")] == ["i", "f"]
    assert {one["value"] for one in plot.newest(showing())} == {"-"}


@pytest.mark.parametrize("name", PLOTS)
def test_five_thousand_versions_are_less_than_five_hundred_points_of_a_plot(name: str) -> None:
    numbers: dict[str, Any] = {"reward": 0.5, "sample/staleness_mean": 1.0, "sample/staleness_max": 2.0, **SYNC}
    snapshot = showing(*runs.chain(5000, **numbers))
    assert len(of(name, snapshot)["value"]) <= MOST_POINTS


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (499, 499), (500, 500), (501, 500), (7919, 500)])
def test_points_are_thinned_evenly_with_both_ends(count: int, kept: int) -> None:
    points = thin(range(count))
    assert len(points) == kept == len(set(points))
    assert points == sorted(points)
    assert not count or (points[0], points[-1]) == (0, count - 1)


def test_the_newest_values_are_in_words() -> None:
    snapshot = showing(manifest(1, reward="nan", ratio=1.00049))
    assert [one["value"] for one in PLOTS["reward"].newest(snapshot)] == ["NaN"]
    assert [one["value"] for one in PLOTS["ratio"].newest(snapshot)] == ["1.0005"]
    lines = [(one["line"], one["value"]) for one in PLOTS["staleness"].newest(snapshot)]
    assert lines == [("mean", "-"), ("largest", "-"), ("limit", "-")]


@pytest.mark.parametrize("reward", [None, True, "high", [1.0]])
def test_a_reward_of_another_type_is_no_reward(reward: object) -> None:
    (value,) = of("reward", showing(manifest(1, reward=reward)))["value"]
    assert math.isnan(value)
    assert PLOTS["reward"].newest(showing(manifest(1, reward=reward)))[0]["value"] == "-"


def test_the_tiles_answer_with_a_number_and_what_it_is_measured_against() -> None:
    told: dict[str, Any] = {
        "reward": 0.5,
        "environment/solved": 0.25,
        "step": 2,
        "max_steps": 60,
        "sample/staleness_mean": 1.25,
    }
    versions = [manifest(0, "anchor", 0), manifest(1, reward=0.25), manifest(2, **told, **SYNC)]
    environment = Answer({"sessions": 3, "capacity": 256})
    snapshot = showing(*versions, replicas={"Replica A": serving(2)}, environment=environment)
    assert tile(snapshot, "Policy version") == ("2", "step 2 of 60, 7.0 s ago", "")
    assert tile(snapshot, "Reward") == ("+0.38", "mean of the last 10; first 10: +0.38", "")
    assert tile(snapshot, "Solved")[0] == "25%"
    assert tile(snapshot, "Staleness")[0] == "1.2"
    assert tile(snapshot, "Replica lag") == ("0", "versions; 1 of 1 verified", "good")
    assert tile(snapshot, "Pause") == ("80 ms", "of the last sync; median 80 ms", "")
    assert tile(snapshot, "Payload") == ("5 kB", "25 % of 20 kB", "")
    assert tile(snapshot, "Sparsity")[0] == "97.5 %"
    assert tile(snapshot, "Environment") == ("3", "of 256 sessions open", "")


def test_a_tile_without_a_number_has_a_dash_and_without_versions_there_are_none() -> None:
    snapshot = showing(manifest(0, "anchor", 0))
    assert tile(snapshot, "Reward")[0] == tile(snapshot, "Payload")[0] == tile(snapshot, "Pause")[0] == "-"
    assert tiles.tiles(showing(), NOW) == []


def test_a_reward_that_is_no_number_and_a_replica_that_is_dirty_are_seen_in_their_tiles() -> None:
    snapshot = showing(manifest(1, reward="nan"), replicas={"Replica A": serving(1, state="dirty")})
    assert tile(snapshot, "Reward")[::2] == ("NaN", "bad")
    assert tile(snapshot, "Replica lag")[2] == "bad"


def test_a_replicas_row_says_what_it_serves_what_failed_and_when_it_was_recounted() -> None:
    counters = {"failed": 2, "undone": 1, "lost": 0, "recounts": 7}
    answer = serving(2, counters=counters, recounted_at=at(40), last_error="once")
    (row,) = replicas.rows(showing(*runs.chain(4), replicas={"Replica A": answer}), NOW)
    cells = dict(zip(replicas.COLUMNS, row["cells"], strict=True))
    assert cells == {
        "replica": "Replica A",
        "state": "serving",
        "run": "r1",
        "version": "2",
        "lag": "1",
        "verified": "yes",
        "fingerprint": runs.fingerprint(2),
        "fallbacks": "2 failed, 1 undone",
        "last audit": "40 s ago, 7 in all",
    }
    assert (row["level"], row["error"]) == ("good", "once")


def test_a_replica_that_is_away_has_a_reason_and_dashes() -> None:
    snapshot = showing(replicas={"Replica A": Answer(problem="it answered HTTP 503")})
    (row,) = replicas.rows(snapshot, NOW)
    assert row["cells"] == ("Replica A", "unreachable", *["-"] * 7)
    assert (row["level"], row["error"]) == ("bad", "it answered HTTP 503")


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"sessions": 3, "capacity": 256}, "Environment: 3 of 256 sessions are open."),
        (
            {"sessions": 3, "capacity": 4, "step_ms": {"p50": 1.25}, "refused": {"capacity": 9}},
            "Environment: 3 of 4 sessions are open, a step takes 1.2 ms (median); "
            "9 were refused because all seats were taken.",
        ),
        ({}, "Environment: it does not say how many sessions are open."),
    ],
)
def test_the_environment_says_its_sessions(document: dict[str, Any], line: str) -> None:
    assert replicas.environment_line(Answer(document)) == line


def test_before_a_replica_has_answered_it_is_said_whether_one_is_asked() -> None:
    snapshot = showing(manifest(1), asked=("Replica A",))
    assert replicas.line(snapshot) == "The replicas are being asked."
    assert tile(snapshot, "Replica lag") == ("-", "being asked", "")
    assert replicas.line(showing()).startswith("No replica is asked.")
    assert tile(showing(manifest(1)), "Replica lag")[1] == "no replica is asked"


def test_the_timeline_has_the_newest_first_and_the_pause_where_it_is_known() -> None:
    second, first, base = timeline.rows(synced())
    assert (second["version"], first["version"], base["payload"]) == ("v2", "v1", "by reference")
    assert [segment["name"] for segment in second["segments"]] == ["diff", "encode", "upload", "stage", "pause"]
    assert second["words"] == "diff 250 ms, encode 50 ms, upload 1.5 s, stage 1.2 s, pause 90 ms"
    assert sum(float(segment["width"]) for segment in second["segments"]) == pytest.approx(100, abs=0.05)
    assert [segment["name"] for segment in base["segments"]] == ["diff", "encode", "upload"]


def test_the_chain_says_what_was_deleted_what_goes_and_who_serves_what() -> None:
    versions = [
        manifest(0, "anchor", MODEL_BYTES),
        manifest(1),
        manifest(2, "anchor", MODEL_BYTES),
        manifest(3),
        manifest(4),
        manifest(5),
    ]
    stored = frozenset(file.path for one in versions[2:] for file in one.files)
    extra = manifest(4, "anchor", MODEL_BYTES)
    kept = stored | {file.path for file in extra.files}
    snapshot = showing(*versions, stored=kept, extra_anchors={4: extra}, replicas={"Replica A": serving(3)})
    found = {link.manifest.version: (link.data, link.served_by) for link in chain.links(snapshot, 10)}
    assert found == {
        0: ("deleted", ()),
        1: ("deleted", ()),
        2: ("goes with the next anchor", ()),
        3: ("goes with the next anchor", ("Replica A",)),
        4: ("kept", ()),
        5: ("kept", ()),
    }
    assert chain.summary(snapshot) == (
        "Published so far: 3 anchors with 60 kB and 4 deltas with 20 kB. "
        "The data of 2 was deleted; with the next anchor 2 more go, 25 kB."
    )
    served = chain.bars(snapshot)[3]
    assert served["words"] == "v3 delta on v2, 5 kB, goes with the next anchor, served by Replica A"
    assert (served["served"], served["kind"], chain.bars(snapshot)[4]["kind"]) == (True, "delta", "anchor")
    newest = dict(zip(chain.COLUMNS, chain.rows(snapshot)[0]["cells"], strict=True))
    assert (newest["version"], newest["base"], newest["changed"], newest["data"]) == ("v5", "v4", "2.5 %", "kept")


def test_a_chain_that_starts_at_the_base_model_goes_on_from_there() -> None:
    snapshot = showing(*runs.chain(3))
    assert [link.data for link in chain.links(snapshot, 10)] == ["kept", "kept", "by reference"]
    assert chain.summary(snapshot) == (
        "Published so far: 2 deltas with 10 kB and 1 by reference to the base model. "
        "Nothing was deleted, and nothing goes with the next anchor."
    )


def test_pictures_and_tables_have_the_newest_versions_only() -> None:
    snapshot = showing(*runs.chain(500))
    assert (len(chain.bars(snapshot)), len(chain.rows(snapshot))) == (chain.BARS, chain.ROWS)
    assert len(timeline.rows(snapshot)) == timeline.SHOWN
    assert chain.rows(snapshot)[0]["cells"][0] == "v499"


def test_the_full_model_is_the_newest_anchors_or_what_the_base_says() -> None:
    by_reference, anchored = runs.chain(2), [manifest(0, "anchor", 30_000), manifest(1)]
    assert full_bytes(run(), by_reference) == 20_000
    assert full_bytes(run(), anchored) == 30_000
    assert full_bytes(None, by_reference) is None


@pytest.mark.parametrize(
    ("nbytes", "told"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (6.1e6, "6.1 MB"), (999_600, "1 MB"), (3.4e12, "3400 GB")],
)
def test_sizes_have_a_unit(nbytes: float, told: str) -> None:
    assert words.size(nbytes) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-3, "0 ms"),
        (0.05, "50 ms"),
        (0.9996, "1.0 s"),
        (7, "7.0 s"),
        (9.96, "10 s"),
        (59, "59 s"),
        (600, "10 min"),
        (9000, "2 h"),
        (400_000, "5 days"),
    ],
)
def test_durations_have_a_unit(seconds: float, told: str) -> None:
    assert words.duration(seconds) == told
