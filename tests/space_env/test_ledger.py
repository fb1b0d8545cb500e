"""What is counted, and how latencies become percentiles."""

import pytest

from space_env.ledger import KEPT_LATENCIES, Ledger, percentiles_ms


def test_without_games_there_is_no_rate_and_no_latency() -> None:
    summary = Ledger().summary()
    assert (summary["episodes"], summary["solve_rate"], summary["steps"]) == (0, None, 0)
    assert summary["step_ms"] == {"p50": None, "p90": None, "p99": None}


def test_the_solve_rate_is_that_of_the_games_that_ended() -> None:
    ledger = Ledger()
    for won in (True, False, False):
        ledger.game_ended(won)
    summary = ledger.summary()
    assert (summary["episodes"], summary["solved"], summary["solve_rate"]) == (3, 1, 0.3333)


def test_a_percentile_is_the_value_that_so_many_of_a_hundred_do_not_exceed() -> None:
    hundred = [i / 1000 for i in range(100, 0, -1)]
    assert percentiles_ms(hundred) == pytest.approx({"p50": 50, "p90": 90, "p99": 99})
    assert percentiles_ms([0.002]) == pytest.approx({"p50": 2, "p90": 2, "p99": 2})


def test_only_the_newest_latencies_count() -> None:
    ledger = Ledger()
    for seconds in [9.0] * 10 + [0.001] * KEPT_LATENCIES:
        ledger.step_answered(seconds)
    assert ledger.summary()["step_ms"]["p99"] == pytest.approx(1)
    assert ledger.steps == KEPT_LATENCIES + 10
