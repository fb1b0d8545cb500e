"""The pause's benchmark runs whole on a live server of a small model: each sync is checked to leave its weights."""

from pathlib import Path

import pytest

from tests.bench import pause
from tests.bench.plot import Curve, draw
from tests.bench.steps import SMALLEST


@pytest.mark.slow
@pytest.mark.vllm
def test_syncs_of_both_orders_are_measured_over_both_links() -> None:
    plan = pause.Plan("tiny", SMALLEST, streams=4, prompt=8, tokens=32, before_s=0.5, after_s=0.5, repetitions=1)
    found = pause.measure(plan)
    counted = {link: (len(ours), len(blog)) for link, (ours, blog) in found.pauses.items()}
    assert counted == {"slow link": (1, 2), "fast link": (1, 2)}
    assert all(one.refilled_tokens >= plan.streams * plan.prompt for one in found.pauses["slow link"][1])
    assert len(found.curves) == 4
    assert {row.case for row in pause.rows(found)} == {"tiny, slow link", "tiny, fast link"}


def test_a_plot_has_a_panel_for_each_case_and_a_name_for_each_curve(tmp_path: Path) -> None:
    curves = [Curve("ours", [(0, 1), (1, 5)]), Curve("the <blog>'s", [(0, 2), (1, 0)])]
    draw({"one": curves, "another": curves}, "seconds", "tokens", tmp_path / "new" / "plot.svg")
    picture = (tmp_path / "new" / "plot.svg").read_text()
    counted = {text: picture.count(f"<!-- {text} -->") for text in ("one", "another", "ours", "seconds", "tokens")}
    assert counted == {"one": 1, "another": 1, "ours": 2, "seconds": 2, "tokens": 2}
