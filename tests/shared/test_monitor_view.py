"""What the page says about a snapshot, by table."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shared.monitor import view
from shared.monitor.poller import Snapshot
from shared.monitor.units import Answer
from shared.types import DataFile, Kind, Manifest, Run

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
RUN = Run("r1", "2030-01-01T11:00:00.000000+00:00", "tiny")
NOTHING = Snapshot("local:/b", number=1)


def manifest(version: int, kind: Kind = "delta", nbytes: int = 5000, age_s: float = 7, **trainer: Any) -> Manifest:
    return Manifest(
        run_id="r1",
        version=version,
        kind=kind,
        files=(DataFile(f"r1/{version}", nbytes, "0" * 32),) if nbytes else (),
        fingerprint=f"{version:016x}",
        changed=1000 if kind == "anchor" else 25,
        total=1000,
        writer_epoch=1,
        created_at=(NOW - timedelta(seconds=age_s)).isoformat(timespec="microseconds"),
        base_version=version - 1 if kind == "delta" else None,
        base_fingerprint="0" * 16 if kind == "delta" else None,
        seconds={"diff": 0.25, "upload": 1.5},
        trainer=trainer,
    )


def showing(*manifests: Manifest, **fields: Any) -> Snapshot:
    return replace(NOTHING, run=RUN, manifests=manifests, **fields)


@pytest.mark.parametrize(
    ("snapshot", "said"),
    [
        (Snapshot("local:/b"), "Bucket local:/b is being read."),
        (NOTHING, "No run yet in bucket local:/b; start a trainer with this bucket."),
        (replace(NOTHING, problem="disk gone"), "Bucket local:/b cannot be read: disk gone."),
        (showing(), "Run r1 has no whole version yet."),
        (showing(manifest(41), manifest(42)), "Run r1, version 42, 7 s since the last."),
        (showing(manifest(42, age_s=600, reward=0.5)), "Run r1, version 42, 10 min since the last, reward +0.500."),
        (showing(manifest(1, age_s=9000)), "Run r1, version 1, 2 h since the last."),
        (showing(manifest(1, age_s=-30)), "Run r1, version 1, 0 s since the last."),
        (
            showing(manifest(1, reward="nan")),
            "Run r1, version 1, 7 s since the last, its reward is not a number.",
        ),
        (showing(replace(manifest(1), created_at="soon")), "Run r1, version 1."),
        (
            showing(manifest(3), problem="HTTP 429: too many requests; try again later"),
            "Bucket local:/b cannot be read: HTTP 429: too many requests; try again later. "
            "Last known: Run r1, version 3, 7 s since the last.",
        ),
    ],
)
def test_the_verdict_is_a_sentence(snapshot: Snapshot, said: str) -> None:
    assert view.verdict(snapshot, NOW) == said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(problem="it cannot be reached (refused)"), "vLLM Space: it cannot be reached (refused)."),
        (
            Answer({"version": None, "state": "starting"}),
            "The vLLM Space serves no version of a run yet, state starting.",
        ),
        (Answer({}), "The vLLM Space serves no version of a run yet, state unknown."),
        (
            Answer({"version": 42, "run_id": "r1", "state": "serving", "last_error": None}),
            "The vLLM Space serves version 42 of run r1, state serving.",
        ),
        (
            Answer({"version": 40, "run_id": "r1", "state": "dirty", "last_error": "no path"}),
            "The vLLM Space serves version 40 of run r1, 2 behind the newest, state dirty. Its last error: no path",
        ),
    ],
)
def test_the_vllm_space_is_described_in_words(answer: Answer, said: str) -> None:
    assert view.unit_lines(showing(manifest(42), units={"vLLM Space": answer})) == said


def test_a_space_that_serves_another_run_has_no_lag() -> None:
    answer = Answer({"version": 1, "run_id": "r0", "state": "serving"})
    assert "behind" not in view.unit_lines(showing(manifest(42), units={"vLLM Space": answer}))


def test_the_environment_says_its_sessions() -> None:
    units = {"Environment": Answer({"sessions": 3, "capacity": 256})}
    assert view.unit_lines(replace(NOTHING, units=units)) == "The environment has 3 of 256 sessions open."


def test_the_plots_hold_the_deltas_and_the_rewards() -> None:
    manifests = [manifest(0, "anchor", 900_000), manifest(1, reward=0.5), manifest(2, nbytes=6000, reward="nan")]
    assert view.payloads(manifests).to_dict("list") == {"version": [1, 2], "bytes": [5000, 6000]}
    assert view.sparsities(manifests).to_dict("list") == {"version": [1, 2], "sparsity": [0.975, 0.975]}
    rewards = view.rewards(manifests)
    assert list(rewards["version"]) == [1, 2]
    assert rewards["reward"][0] == 0.5 and math.isnan(rewards["reward"][1])


def test_no_versions_make_empty_plots_and_an_empty_table() -> None:
    assert [list(frame.columns) for frame in (view.rewards([]), view.payloads([]))] == [
        ["version", "reward"],
        ["version", "bytes"],
    ]
    assert (view.table([]), view.payload_line([])) == ([], "")


@pytest.mark.parametrize("reward", [None, True, "high", [1.0]])
def test_a_reward_of_another_type_is_no_reward(reward: object) -> None:
    assert view.reward_of(manifest(1, reward=reward)) is None


def test_anchors_are_told_apart_from_deltas_in_words() -> None:
    manifests = [manifest(0, "anchor", 1_340_000), manifest(1), manifest(2, nbytes=7000)]
    assert view.payload_line(manifests) == (
        "Anchors: 1, the newest is version 0 with 1.34 MB. Deltas: 2, 6.00 kB on average."
    )


def test_the_table_has_the_newest_version_first() -> None:
    rows = view.table([manifest(0, "anchor", 0), *(manifest(version) for version in range(1, 3))])
    assert rows == [
        ["2", "delta", "5.00 kB", "2.500", "1", "0000000000000002", "1.75"],
        ["1", "delta", "5.00 kB", "2.500", "0", "0000000000000001", "1.75"],
        ["0", "anchor", "by reference", "100.000", "", "0000000000000000", "1.75"],
    ]
    assert {len(row) for row in rows} == {len(view.COLUMNS)}


def test_the_table_is_cut_to_the_newest_versions() -> None:
    rows = view.table([manifest(version) for version in range(1, 200)])
    assert (len(rows), rows[0][0]) == (view.MOST_ROWS, "199")


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (499, 499), (500, 500), (501, 500), (7919, 500)])
def test_a_plot_has_at_most_five_hundred_points_with_both_ends(count: int, kept: int) -> None:
    points = view.thin(range(count))
    assert len(points) == kept == len(set(points))
    assert points == sorted(points)
    assert not count or (points[0], points[-1]) == (0, count - 1)


@pytest.mark.parametrize(
    ("nbytes", "said"), [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (6.1e6, "6.10 MB"), (3.4e12, "3400.00 GB")]
)
def test_sizes_have_a_unit(nbytes: float, said: str) -> None:
    assert view.size(nbytes) == said
