"""The command: which parts it runs, and what it leaves in `benchmarks.json`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench import __main__ as command
from tests.bench.rows import Result, Row, result


def part(ours: float) -> Callable[[], Result]:
    return lambda: result([Row("case", "s", "peer", ours, 2.0)])


def absent() -> Result:
    raise ModuleNotFoundError("No module named 'vllm'")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "PARTS", {"one": part(1.0), "two": part(2.0), "three": absent})
    return lambda: sorted(json.loads(Path("benchmarks.json").read_text()), key=lambda row: str(row["part"]))


def test_a_part_that_runs_alone_leaves_the_rows_of_the_others(
    rows: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.main(["one"]) == command.main(["two"]) == 0
    monkeypatch.setattr(command, "PARTS", {"one": part(8.0)})
    assert command.main([]) == 0
    assert [(row["part"], row["ours"]) for row in rows()] == [("one", 8.0), ("two", 2.0)]


def test_a_part_that_cannot_run_says_why_and_has_no_number(rows: Callable[[], list[dict[str, Any]]]) -> None:
    assert command.main([]) == 0
    assert [row.get("not run", row.get("ours")) for row in rows()] == [1.0, "No module named 'vllm'", 2.0]


def test_a_part_that_there_is_not_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nonsense"]) == 2
    assert capsys.readouterr().err.startswith("no part named 'nonsense'; choose from payload, trained")
