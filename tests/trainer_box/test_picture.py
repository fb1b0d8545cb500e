"""The picture of a report: its points are the report's, and it is drawn whatever is missing."""

import math
from pathlib import Path

import pytest

from shared.types import Json
from trainer_box import picture

STEPS: list[Json] = [
    {"step": 1, "reward": -0.5, "payload_bytes": 2000, "pause_ms": 80.0, "staleness": 0.0},
    {"step": 2, "reward": math.nan, "payload_bytes": None, "pause_ms": None, "staleness": 1.0},
    {"step": 3, "reward": 0.25, "payload_bytes": 4000, "pause_ms": 60.0, "staleness": None},
]


def test_the_points_are_the_steps_numbers_without_those_that_are_unknown() -> None:
    assert picture._points(STEPS, "reward", 1.0) == ([1, 3], [-0.5, 0.25])
    assert picture._points(STEPS, "payload_bytes", 1e-3) == ([1, 3], [2.0, 4.0])
    assert picture._points(STEPS, "never told", 1.0) == ([], [])


@pytest.mark.parametrize("steps", [STEPS, []], ids=["some", "none"])
@pytest.mark.parametrize("learned", [True, False, None])
def test_it_is_a_picture_whatever_the_report_says(tmp_path: Path, steps: list[Json], learned: bool | None) -> None:
    drawn = picture.draw({"run_id": "r", "verified": True, "learned": learned, "steps": steps}, tmp_path)
    assert drawn == tmp_path / "report.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")
