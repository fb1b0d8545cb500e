"""Every state that a run and its units can be in, as the page tells it: one page, which is never loaded anew."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from shared.types import End
from tests.shared.monitor.runs import at, rollout, serving
from tests.ui.monitors import Monitor, training
from tests.ui.visits import Visit, visit

pytestmark = pytest.mark.slow

Prepare = Callable[[Monitor], Any]


@pytest.fixture(scope="module")
def open_page(chromium: Browser, running: Monitor) -> Visit:
    return visit(chromium, f"{running.url}/monitor/")


def served(monitor: Monitor, run_id: str, version: int, **said: Any) -> None:
    monitor.replica.document = serving(version, run_id, **said).document


def starting(monitor: Monitor) -> None:
    monitor.write("new", age_s=5)


def learning(monitor: Monitor) -> None:
    monitor.write("good", training("good", 60))
    for version in (58, 59):
        game = rollout(
            ("trace", "T?R-A-C-E- 5 left"), ("agree", "A+G+R+E+E+ won"), reward=0.9, environment__solved=1.0
        )
        monitor.write_rollouts("good", version, *[game] * 4)
    counters = {"recounts": 12}
    served(monitor, "good", 59, counters=counters, recounted_at=at(40))


def not_learning(monitor: Monitor) -> None:
    monitor.write("flat", training("flat", 60, gain=0.0))
    served(monitor, "flat", 59)


def too_early(monitor: Monitor) -> None:
    monitor.write("early", training("early", 5))
    served(monitor, "early", 4)


def stalled(monitor: Monitor) -> None:
    monitor.write("silent", training("silent", 30, silent_s=240))
    served(monitor, "silent", 29)


def finished(monitor: Monitor) -> None:
    monitor.write("done", training("done", 60, silent_s=90_000), End("done", 59, at(0)))
    served(monitor, "done", 59)


def stopped(monitor: Monitor) -> None:
    reason = "sync v30: vLLM serves version 27 after 120 s of waiting"
    monitor.write("gave-up", training("gave-up", 30, silent_s=600), End("gave-up", 29, at(0), reason))
    served(monitor, "gave-up", 29)


def nan_reward(monitor: Monitor) -> None:
    versions = training("nan", 20)
    versions[-1] = replace(versions[-1], trainer={**versions[-1].trainer, "reward": "nan"})
    monitor.write("nan", versions)
    served(monitor, "nan", 19)


def behind(monitor: Monitor) -> None:
    monitor.write("ahead", training("ahead", 20))
    served(monitor, "ahead", 16)


def refused(monitor: Monitor) -> None:
    monitor.write("refusing", training("refusing", 20))
    served(monitor, "refusing", 17, last_error="version 18: its file has content hash 1f, its manifest says 2e")


def catching_up(monitor: Monitor) -> None:
    monitor.write("joining", training("joining", 20))
    served(monitor, "joining", 3, state="catching_up")


def paused(monitor: Monitor) -> None:
    monitor.write("pausing", training("pausing", 20))
    served(monitor, "pausing", 18, state="applying")


def dirty(monitor: Monitor) -> None:
    monitor.write("lost", training("lost", 20))
    served(monitor, "lost", 18, state="dirty", last_error="nobody knows which weights are live")


def unreachable(monitor: Monitor) -> None:
    monitor.write("away", training("away", 20))
    monitor.replica.status = 503


def no_environment(monitor: Monitor) -> None:
    monitor.write("alone", training("alone", 20))
    served(monitor, "alone", 19)
    monitor.environment.status = 500


def damaged(monitor: Monitor) -> None:
    monitor.write("broken", training("broken", 20))
    served(monitor, "broken", 19)
    (monitor.folder / "broken/manifests/000007.json").write_text("{")


@pytest.mark.parametrize(
    ("prepare", "state", "headline"),
    [
        (lambda monitor: None, "no run yet", "No run yet in bucket local:"),
        (starting, "starting", "Run new has no whole version yet: its trainer is starting."),
        (too_early, "running", "Running, version 4, the replica verified."),
        (learning, "learning", "Learning, version 59, the replica verified."),
        (not_learning, "running", "Running, but not learning so far, version 59"),
        (stalled, "stalled", "Trainer silent for 4 min, versions usually take 20 s."),
        (finished, "finished", "Finished with version 59, it learned."),
        (stopped, "stopped", "Stopped at version 29: sync v30: vLLM serves version 27 after 120 s of waiting."),
        (nan_reward, "NaN reward", "The reward of version 19 is not a number: read its games below."),
        (behind, "behind", "Replica A is 3 versions behind."),
        (refused, "refused", "Replica A is 2 versions behind and refused a newer one: version 18: its file has"),
        (catching_up, "catching up", "Replica A is catching up, it serves version 3."),
        (paused, "paused", "Replica A is paused: it applies a version, it serves version 18."),
        (dirty, "replica dirty", "Replica A has lost its weights and answers nothing until they are back: nobody"),
        (unreachable, "replica unreachable", "Replica A: it answered HTTP 503."),
        (no_environment, "environment unreachable", "Environment: it answered HTTP 500."),
        (damaged, "damaged file", "broken/manifests/000007.json is not valid JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 25 else "",
)
def test_a_state_is_told_in_a_word_and_a_sentence(
    open_page: Visit, running: Monitor, prepare: Prepare, state: str, headline: str
) -> None:
    running.reset()
    prepare(running)
    open_page.wait_for(".verdict h1", headline)
    open_page.wait_for(".verdict .state", state)
    open_page.save_screenshot(f"monitor-{state.replace(' ', '-').lower()}")
    assert open_page.errors == []


def test_a_bucket_that_cannot_be_read_says_why_and_shows_what_was_last_known(
    open_page: Visit, running: Monitor
) -> None:
    running.reset()
    learning(running)
    open_page.wait_for(".verdict .state", "learning")
    elsewhere = Path(f"{running.folder}-elsewhere")
    shutil.move(running.folder, elsewhere)
    open_page.wait_for(".verdict h1", "cannot be read: cannot list the folder in bucket")
    open_page.wait_for(".verdict li", "Learning, version 59")
    open_page.wait_for("#versions", "v59")
    open_page.save_screenshot("monitor-bucket-unreadable")
    shutil.move(elsewhere, running.folder)
    open_page.wait_for(".verdict .state", "learning")


def test_of_several_runs_one_can_be_picked_and_the_newest_is_followed_again(
    open_page: Visit, running: Monitor
) -> None:
    running.reset()
    running.write("first", training("first", 5), age_s=500)
    running.write("second", training("second", 9), age_s=100)
    open_page.wait_for(".verdict li", "Version 8 of run second is the newest")
    picker = open_page.page.get_by_label("Run", exact=True)
    picker.click()
    open_page.page.get_by_role("option", name="first").click()
    open_page.wait_for(".verdict li", "Version 4 of run first is the newest")
    open_page.save_screenshot("monitor-several-runs")
    picker.click()
    open_page.page.get_by_role("option", name="the newest").click()
    open_page.wait_for(".verdict li", "Version 8 of run second is the newest")
    assert open_page.errors == []
