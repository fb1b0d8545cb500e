"""From step records to a verdict: what counts as learned, and a report that any JSON reader takes."""

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shared.types import Json
from trainer_box import report, sparsity

FACTS = {
    "run_id": "demo",
    "verified": True,
    "versions": 3,
    "model_bytes": 1_340_000,
    "greedy_solve_rate": {"games": 200, "before": 0.1, "after": 0.6},
    "agreement": {"tokens": 768, "importance_ratio": 1.0012, "max_logprob_difference": 0.0123},
    "seconds": {"start": 30.0, "train": 200.4},
}


def step(number: int, reward: float | None = 0.0, **changes: Any) -> Json:
    return {
        "step": number,
        "reward": reward,
        "solve_rate": 0.25,
        "version": number,
        "kind": "delta",
        "payload_bytes": 350_000,
        "changed": 30,
        "total": 100,
        "sparsity": 0.7,
        "pause_ms": 12.4,
        "staleness": 1.5,
        "importance_ratio": 1.001,
        **changes,
    }


def absorbed(number: int, reward: float | None = 0.0) -> Json:
    """A step whose sync point has no version of its own."""
    of_sync = ("kind", "payload_bytes", "changed", "total", "sparsity", "pause_ms")
    return step(number, reward, **dict.fromkeys(of_sync))


def steps(rewards: Sequence[float | None]) -> list[Json]:
    return [step(number, reward) for number, reward in enumerate(rewards, start=1)]


def rising(count: int, by: float) -> list[float | None]:
    return [by * i / count + (0.05 if i % 2 else -0.05) for i in range(count)]


def strict(path: Path) -> Json:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found: Json = json.loads(path.read_text(), parse_constant=refuse)
    return found


def test_a_run_succeeds_when_verified_unless_it_failed_to_learn() -> None:
    for verified, learned, expected in (
        (True, True, True),
        (True, None, True),
        (True, False, False),
        (False, True, False),
        (False, None, False),
    ):
        assert report.succeeded({"verified": verified, "learned": learned}) is expected


def test_the_report_is_written_with_its_means_and_steps(tmp_path: Path) -> None:
    records = [step(1, payload_bytes=100, pause_ms=10.0), step(2, payload_bytes=300, pause_ms=30.0)]
    summary = report.summarise(records, FACTS, tmp_path)
    assert strict(tmp_path / report.FILE) == summary
    assert (summary["learned"], summary["reward"]) == (None, None)
    assert (summary["mean_payload_bytes"], summary["mean_pause_ms"]) == (200, 20)
    assert summary["next_step_sparsity"] is None
    assert summary["steps"] == records


def test_the_means_of_syncs_are_over_the_steps_that_have_one(tmp_path: Path) -> None:
    records = [step(1, payload_bytes=100, pause_ms=10.0), absorbed(2), step(3, payload_bytes=300, pause_ms=30.0)]
    summary = report.summarise(records, FACTS, tmp_path)
    assert (summary["mean_payload_bytes"], summary["mean_pause_ms"]) == (200, 20)
    assert summary["steps"] == records


def test_a_run_without_any_sync_of_a_step_can_be_shown(tmp_path: Path) -> None:
    console, output = shown()
    report.show(console, report.summarise([absorbed(1)], FACTS, tmp_path), tmp_path)
    assert "mean payload - kB of a 1340 kB model" in output.getvalue()


def test_numbers_that_are_none_or_nan_leave_a_valid_report(tmp_path: Path) -> None:
    odd = {"agreement": {"tokens": 1, "importance_ratio": math.nan, "max_logprob_difference": math.inf}}
    records = [step(1, None, importance_ratio=None, solve_rate=None), step(2, math.nan)]
    report.summarise(records, {**FACTS, **odd}, tmp_path)
    written = strict(tmp_path / report.FILE)
    assert written["agreement"] == {"tokens": 1, "importance_ratio": None, "max_logprob_difference": None}
    assert [record["reward"] for record in written["steps"]] == [None, None]
    assert written["mean_importance_ratio"] == 1.001


def shown(width: int = 200) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, width=width), output


def test_the_table_has_a_row_per_step_and_a_dash_for_what_is_unknown() -> None:
    console, output = shown()
    known, unknown = step(7, 0.5), step(8, None, solve_rate=None, staleness=None)
    console.print(report.table([known, unknown, absorbed(9, 0.5), {**known, "step": 10, "kind": None}], "steps"))
    head, first, second, third, fourth = [
        line.split() for line in output.getvalue().splitlines() if len(line.split()) > 9
    ]
    assert " ".join(head) == "step reward solved version kind kB sparsity pause ms staleness ratio"
    assert first == ["7", "+0.500", "0.25", "7", "delta", "350", "0.700", "12", "1.5", "1.001"]
    assert second == ["8", "-", "-", "8", "delta", "350", "0.700", "12", "-", "1.001"]
    assert third == ["9", "+0.500", "0.25", "9", "-", "-", "-", "-", "1.5", "1.001"], "a later sync covered it"
    assert fourth[4:8] == ["-"] * 4


def test_the_end_tells_learning_payload_agreement_and_sparsity(tmp_path: Path) -> None:
    found = {name: {"learning_rate": rate, "sparsity": 0.7 + rate} for name, rate in (("run", 0.0), ("rl_size", 0.2))}
    (tmp_path / sparsity.FILE).write_text(json.dumps(found))
    summary = report.summarise(steps(rising(60, 1.0)), FACTS, tmp_path)
    console, output = shown()
    report.show(console, summary, tmp_path)
    text = output.getvalue()
    assert "learned: reward +0.0" in text
    assert "3 versions published, every one verified; mean payload 350 kB of a 1340 kB model" in text
    assert "greedy solve rate on the same 200 seeds: 0.10 before, 0.60 after training" in text
    assert "mean importance ratio 1.0012, largest log-probability difference 1.2e-02 over 768 tokens" in text
    assert "sparsity 0.700 at this learning rate; one more step at an RL-size" in text
    assert "would have 0.900" in text
    assert "seconds: start 30, train 200" in text
    assert str(tmp_path / report.FILE) in text.replace("\n", "")


def test_a_run_that_is_too_short_to_tell_says_nothing_of_learning(tmp_path: Path) -> None:
    console, output = shown()
    report.show(console, report.summarise([step(1)], FACTS, tmp_path), tmp_path)
    assert "learn" not in output.getvalue()


@pytest.mark.parametrize("missing", ["payload_bytes", "sparsity", "pause_ms"])
def test_a_sync_without_one_of_its_numbers_has_a_dash_in_its_place(missing: str) -> None:
    console, output = shown()
    console.print(report.table([{**step(7, 0.5), missing: None}], "steps"))
    (row,) = [line.split() for line in output.getvalue().splitlines() if len(line.split()) == 10]
    assert row.count("-") == 1
