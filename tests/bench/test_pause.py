"""The pause's benchmark runs whole on a live server of a small model: each sync is checked to leave its weights."""

import xml.etree.ElementTree

import pytest

from tests.bench import models, pause
from tests.bench.plot import Curve, draw


@pytest.mark.slow
@pytest.mark.vllm
def test_syncs_of_both_orders_are_measured_over_both_links() -> None:
    plan = pause.Plan(models.smallest(), streams=4, prompt=8, tokens=32, before_s=0.5, after_s=0.5, repetitions=1)
    found = pause.measure(plan)
    counted = {link: (len(ours), len(blog)) for link, (ours, blog) in found.pauses.items()}
    assert counted == {"slow link": (1, 2), "fast link": (1, 2)}
    assert all(one.refilled_tokens >= plan.streams * plan.prompt for one in found.pauses["slow link"][1])
    assert len(found.curves) == 4
    assert {row.case for row in pause.rows(found)} == {"slow link", "fast link"}


def test_a_plot_has_a_line_and_a_name_for_each_curve() -> None:
    curves = [Curve("ours", [(0, 1), (1, 5)]), Curve("the <blog>'s", [(0, 2), (1, 0)])]
    picture = xml.etree.ElementTree.fromstring(draw(curves, "seconds", "tokens"))
    lines = [one for one in picture if one.tag.endswith("polyline") and one.get("stroke-width") == "2"]
    texts = [one.text for one in picture if one.tag.endswith("text")]
    assert [line.get("points") for line in lines] == ["70.0,292.0 880.0,20.0", "70.0,224.0 880.0,360.0"]
    assert {"ours", "the <blog>'s", "seconds", "tokens"} <= set(texts)
