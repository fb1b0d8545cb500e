"""Pieces of HTML: whatever is put in stays text."""

import jinja2
import pytest

from shared.monitor import pieces
from shared.monitor.games import Choice
from shared.monitor.markup import rendered
from shared.monitor.units import Answer
from tests.shared.monitor.runs import NOW, manifest, rollout, showing

MARKUP = "<img src=x onerror='alert(1)'>\"</style>"


def test_a_value_is_escaped() -> None:
    html = rendered("verdict", level="good", state=MARKUP, headline=MARKUP, notes=[MARKUP])
    assert "<img" not in html
    assert html.count("&lt;img src=x onerror=&#39;alert(1)&#39;&gt;&#34;&lt;/style&gt;") == 3


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="'headline' is undefined"):
        rendered("verdict", level="good", state="running", notes=[])


def test_nothing_of_a_snapshot_gets_through_as_markup() -> None:
    game = rollout((MARKUP, f"{MARKUP} 5 left"), (MARKUP, "invalid word lost"), text=MARKUP)
    game["messages"].append({"role": MARKUP, "content": MARKUP})
    game["numbers"] = {f"environment/reward_{MARKUP}": 1.0}
    said = {"run_id": MARKUP, "state": MARKUP, "last_error": MARKUP, "fingerprint": MARKUP, "recounted_at": MARKUP}
    snapshot = showing(
        manifest(1, reward=MARKUP),
        problem=MARKUP,
        damaged=(MARKUP,),
        rollout_versions=(1,),
        rollouts={1: (game,)},
        replicas={"Replica A": Answer(said)},
        environment=Answer(problem=MARKUP),
    )
    html = [
        *pieces.of_now(snapshot, NOW),
        *pieces.of_plots(snapshot),
        *pieces.of_bucket(snapshot),
        pieces.of_games(snapshot, Choice()),
    ]
    assert "".join(html).count("&lt;img") > 8
    assert "<img" not in "".join(html)
