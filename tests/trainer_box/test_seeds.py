"""`make demo-seeds` without its half hour: the demo is a stand-in that writes the report it is told to."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.types import Json
from trainer_box import report, seeds

LEARNED = {"first": -0.1, "last": 0.5, "standard_error": 0.05}
FLAT = {"first": 0.1, "last": 0.1, "standard_error": 0.05}


class Demo:
    """Takes the place of subprocess.run: keeps the commands, and writes the next report."""

    def __init__(self, reports: list[Json | None]) -> None:
        self.commands: list[list[str]] = []
        self._reports = reports

    def __call__(self, command: list[str], **_: Any) -> None:
        found = self._reports[len(self.commands)]
        self.commands.append(command)
        if found is not None:
            folder = Path("runs", f"demo-{len(self.commands)}")
            folder.mkdir(parents=True)
            (folder / report.FILE).write_text(json.dumps(found))


def outcome(learned: bool | None) -> Json:
    reward = None if learned is None else LEARNED if learned else FLAT
    rates = {"before": 0.125, "after": 0.625}
    return {"learned": learned, "reward": reward, "greedy_solve_rate": rates, "seconds": {"train": 201.0}}


def run(
    monkeypatch: pytest.MonkeyPatch, folder: Path, learned: Sequence[bool | None], *arguments: str
) -> tuple[int, Demo]:
    demo = Demo([outcome(one) for one in learned])
    monkeypatch.chdir(folder)
    monkeypatch.setattr(subprocess, "run", demo)
    monkeypatch.setattr(sys, "argv", ["seeds", *arguments])
    return seeds.main(), demo


@pytest.mark.parametrize(
    ("learned", "code"),
    [
        ([True, True, True, True, True, False], 0),
        ([True, False, True, True, True, False], 0),
        ([True, False, True, False, True, False], 1),
        ([True, True, True, True, True, True], 1),
    ],
)
def test_four_of_five_seeds_have_to_learn_and_the_frozen_control_must_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, learned: list[bool | None], code: int
) -> None:
    assert run(monkeypatch, tmp_path, learned)[0] == code


def test_each_seed_and_the_control_are_run_with_the_arguments_given_and_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    _, demo = run(monkeypatch, tmp_path, [True] * 5 + [False], "--steps", "60")
    asked = [command[command.index("--no-ui") + 1 :] for command in demo.commands]
    assert asked == [
        *(["--seed", str(seed), "--steps", "60"] for seed in range(5)),
        ["--learning-rate", "0", "--steps", "60"],
    ]
    shown = capsys.readouterr().out
    assert shown.count("-0.100") == 5
    assert "5 of 5 seeds learned; the frozen control did not rise" in shown
    assert "frozen" in shown


def test_runs_too_short_to_tell_are_shown_and_do_not_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, [None] * 6)[0] == 1
    assert "0 of 5 seeds learned" in capsys.readouterr().out


def test_a_demo_without_a_report_ends_the_series(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", Demo([None]))
    monkeypatch.setattr(sys, "argv", ["seeds"])
    with pytest.raises(SystemExit, match="the demo with --seed 0 left no report"):
        seeds.main()
