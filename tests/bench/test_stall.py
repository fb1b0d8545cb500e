"""The stall's benchmark runs whole, at a small size, with a Space's process that verifies."""

import pytest

from tests.bench import stall
from tests.bench.steps import SMALLEST

pytestmark = pytest.mark.slow  # starts a process that imports torch

PLAN = stall.Plan(SMALLEST, links=(1e8,), step_s=0.0, steps=2, rounds=1)


@pytest.fixture(scope="module")
def bench() -> stall.Bench:
    return stall.measure(PLAN)


def test_each_way_has_as_many_points_as_steps_and_a_stall_where_a_diff_was_taken(bench: stall.Bench) -> None:
    ways = {way: measured.points for (_, way), measured in bench.found.items()}
    assert ways == {"none": 2, "ours": 2, "synchronous": 2, "synchronous, int32 + bf16": 2}
    ours = bench.found[1e8, "ours"]
    assert 1 <= len(ours.stalls) == len(ours.nbytes)


def test_every_sync_on_the_thread_that_trains_is_a_version_that_changes_something(bench: stall.Bench) -> None:
    for way in ("synchronous", "synchronous, int32 + bf16"):
        assert all(bench.found[1e8, way].nbytes) and all(bench.found[1e8, way].changed)
        assert len(bench.found[1e8, way].nbytes) == PLAN.steps


def test_the_blogs_file_is_larger(bench: stall.Bench) -> None:
    plain, ours = (min(bench.found[1e8, way].nbytes) for way in ("synchronous, int32 + bf16", "synchronous"))
    assert plain > ours


def test_rows_compare_each_link_with_both_peers_and_with_no_sync(bench: stall.Bench) -> None:
    rows = list(stall.rows(bench))
    assert {row.case for row in rows} == {"100 MB/s"}
    peers = {"synchronous", "synchronous, int32 + bf16"}
    assert {row.peer for row in rows} == {*peers, "without a sync", "all points"}
    assert {row.peer for row in rows if row.what == "stall per step, s"} == peers
