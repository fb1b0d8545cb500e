"""The monitor as a visitor sees it: a real server process and a real browser, on loopback."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from playwright.sync_api import Browser, expect

from shared.bucket import open_bucket
from shared.types import Json
from tests.shared.monitor.runs import fingerprint, rollout, serving
from tests.ui.monitors import Monitor, free_port, served, training
from tests.ui.visits import SEEN_MS, Visit, brightness, visit
from trainer_box.publisher import Publisher

pytestmark = pytest.mark.slow

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><img src=http://example.test/pixel.png>"
    "<script>document.title='owned'</script>${document.title='owned'} `{{this}}` ![](http://example.test/x.png)"
)
DRAWN = """() => [...document.querySelectorAll(".plot")].map(plot => [
  plot.id,
  [...plot.querySelector("svg .role-axis-label").querySelectorAll("text")].map(label => label.textContent),
  plot.querySelectorAll("svg .role-axis-label text").length < 20,
  [...plot.querySelectorAll("svg .mark-line path")].map(line => [
    line.getAttribute("stroke"), line.getBBox().width > 100,
  ]),
])"""
"""Of each plot the labels of one axis, whether they are few, and of its lines the colour and whether they are seen."""
REFRESH: Json = {"data": [None] * 5, "fn_index": 0, "session_hash": "abc"}


def fill(monitor: Monitor, run_id: str, *newest: Json) -> None:
    """A run that learns, with games (the newest version's may be given), whose newest version the replica serves."""
    monitor.reset()
    monitor.write(run_id, training(run_id, 60))
    won = rollout(
        ("trace", "T?R-A-C-E- 5 left"),
        ("agree", "A+G+R+E+E+ won"),
        text="I try a common word.",
        reward=0.9,
        environment__solved=1.0,
        environment__reward_solved=1.0,
    )
    lost = rollout(("zzzzz", "invalid word lost"), reward=-0.6, environment__solved=0.0)
    for version in range(50, 60):
        monitor.write_rollouts(run_id, version, *(newest if newest and version == 59 else (won, lost)))
    monitor.replica.document = serving(59, run_id, counters={"recounts": 12}).document


def looked(browser: Browser, monitor: Monitor, run_id: str, **options: Any) -> Visit:
    """A page that shows this run: the monitor may still tell of the one before, which ended as it does."""
    found = visit(browser, f"{monitor.url}/monitor/", **options)
    found.wait_for(".verdict li", f"Version 59 of run {run_id} is the newest")
    return found


def test_a_new_version_appears_without_a_reload_and_without_leaving_the_machine(
    browser: Browser, running: Monitor
) -> None:
    running.reset()
    visited = visit(browser, f"{running.url}/")
    visited.wait_for(".verdict h1", "No run yet")
    with Publisher(open_bucket(f"local:{running.folder}"), "fresh") as publisher:
        for version, reward in enumerate((0.25, 0.5)):
            told = {"reward": reward}
            published = publisher.publish([("w", torch.full((64,), reward))], told)
            visited.wait_for(".verdict li", f"Running, version {version}")
            visited.wait_for("#versions", published.fingerprint)
            visited.wait_for("#head-reward", f"{reward:+.2f}")
    assert visited.errors == []
    assert visited.asked_elsewhere(running.url) == []


def test_a_page_that_was_opened_before_the_run_draws_as_one_that_was_opened_after_it(
    browser: Browser, running: Monitor
) -> None:
    running.reset()
    early = visit(browser, f"{running.url}/monitor/")
    early.wait_for(".verdict h1", "No run yet")
    expect(early.page.locator("#plot-duration svg")).to_be_visible(timeout=SEEN_MS)
    fill(running, "awaited")
    early.wait_for(".tile .value", "59")
    late = looked(browser, running, "awaited")
    for visited in (early, late):
        expect(visited.page.locator("#plot-duration svg .mark-line path").first).to_be_visible(timeout=SEEN_MS)
    deadline = time.monotonic() + SEEN_MS / 1000
    while (drawn := late.page.evaluate(DRAWN)) != (opened := early.page.evaluate(DRAWN)):
        assert time.monotonic() < deadline, [pair for pair in zip(opened, drawn, strict=True) if pair[0] != pair[1]]
        late.page.wait_for_timeout(200)
    assert len(drawn) == 14 and drawn[0][2:] == [True, [["#2563eb", True]]]
    assert early.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_can_be_read_at_any_width_and_in_the_dark_and_axe_finds_nothing_serious(
    browser: Browser, running: Monitor, scheme: str, width: int
) -> None:
    fill(running, run_id := f"seen-{scheme}-{width}")
    visited = looked(browser, running, run_id, width=width, color_scheme=scheme)
    visited.wait_for(".game h3", "Version 59")
    expect(visited.page.locator("#plot-duration svg")).to_be_visible(timeout=SEEN_MS)
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= width
    seen = visited.page.locator("#replicas-view td", has_text=fingerprint(59)).bounding_box()
    assert seen is not None and seen["x"] + seen["width"] <= width, "without scrolling"
    text = visited.page.locator(".verdict h1").evaluate("element => getComputedStyle(element).color")
    assert brightness(text) < 60 if scheme == "light" else brightness(text) > 200
    picture = visited.save_screenshot(f"monitor-{scheme}-{width}")
    assert picture.stat().st_size > 50_000
    assert visited.serious_violations() == []
    assert (visited.errors, visited.asked_elsewhere(running.url)) == ([], [])


def test_games_are_chosen_by_keyboard(browser: Browser, running: Monitor) -> None:
    fill(running, "keyboard")
    visited = looked(browser, running, "keyboard")
    page = visited.page
    expect(page.locator(".game")).to_have_count(12, timeout=SEEN_MS)
    reached = list[str]()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.closest('[id]')?.id || document.activeElement.tagName"))
        if "version" in reached:
            break
    assert "version" in reached, reached
    page.keyboard.type("57")
    visited.wait_for("#games-view", "2 games are shown; there are some of 10 versions, 50 to 59.")
    page.keyboard.press("Tab")  # to "all"
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator(".game")).to_have_count(1, timeout=SEEN_MS)
    visited.wait_for(".game", "solved")
    page.get_by_label("Reward at least").fill("0.95")
    visited.wait_for("#games-view", "No game of version 57 is as chosen")
    assert visited.errors == []


def test_what_a_model_wrote_stays_text_and_loads_nothing(browser: Browser, running: Monitor) -> None:
    game = rollout((HOSTILE, f"{HOSTILE} 5 left"), (HOSTILE, "invalid word lost"), text=HOSTILE, reward=0.5)
    game["numbers"][f"environment/reward_{HOSTILE}"] = 1.0
    game["messages"].append({"role": HOSTILE, "content": HOSTILE})
    fill(running, "hostile", game)
    running.replica.document["last_error"] = HOSTILE
    running.replica.document["state"] = HOSTILE
    visited = looked(browser, running, "hostile")
    visited.page.locator(".game", has_text="+0.50").locator("summary").click()
    visited.wait_for(".turn", HOSTILE)
    visited.wait_for("#replicas-view td", HOSTILE)
    assert visited.page.locator("#games-view img, #replicas-view img, #games-view script").count() == 0
    assert visited.page.title() == "Monitor"
    assert (visited.errors, visited.asked_elsewhere(running.url)) == ([], [])


def test_a_game_that_is_read_stays_open_when_others_come(browser: Browser, running: Monitor) -> None:
    fill(running, "read")
    visited = looked(browser, running, "read")
    visited.wait_for("#games-view h3", "Version 57")
    game = visited.page.locator(".game", has_text="Version 59").first
    game.locator("summary").click()
    running.write_rollouts("read", 60, rollout(("trace", "T?R-A-C-E- 5 left")))
    visited.wait_for("#games-view h3", "Version 60")
    game.get_by_text("I try a common word.").wait_for()
    assert visited.page.locator(".game details[open]").count() == 1
    game.locator("summary").click()
    running.write_rollouts("read", 61, rollout(("trace", "T?R-A-C-E- 5 left")))
    visited.wait_for("#games-view h3", "Version 61")
    assert visited.page.locator(".game details[open]").count() == 0
    assert visited.errors == []


def test_the_page_quotes_a_damaged_file_as_text(browser: Browser, running: Monitor) -> None:
    running.reset()
    document = '{"format": 2, "run_id": "<img src=x onerror=document.title=1>"}'
    open_bucket(f"local:{running.folder}").write("run-1/run.json", document.encode())
    visited = visit(browser, f"{running.url}/monitor/")
    visited.wait_for(".verdict h1", "<img src=x onerror=document.title=1>")
    assert visited.page.locator(".verdict img").count() == 0
    assert visited.errors == []


def test_a_replica_is_asked_only_while_the_page_is_open(browser: Browser, running: Monitor) -> None:
    fill(running, "asked")
    visited = looked(browser, running, "asked")
    before = running.replica.asked
    visited.wait_for("#replicas-view td", "Replica A")
    visited.page.wait_for_timeout(3000)
    assert running.replica.asked > before
    visited.page.close()
    deadline = time.monotonic() + 60
    while True:  # until a whole period passes without being asked
        asked = running.replica.asked
        time.sleep(5)
        if running.replica.asked == asked:
            break
        assert time.monotonic() < deadline, "it is asked although nobody looks"


def test_five_thousand_versions_open_and_every_plot_is_small(browser: Browser, running: Monitor) -> None:
    running.reset()
    running.write("long", training("long", 5000, every_s=1))
    visited = visit(browser, f"{running.url}/monitor/")
    visited.wait_for(".tile .value", "4999")
    visited.page.locator(".verdict li", has_text="still to be read").wait_for(state="detached", timeout=SEEN_MS)
    answer = httpx.post(f"{running.url}/monitor/gradio_api/run/predict", json=REFRESH, trust_env=False)
    plots = [
        one["data"] for one in answer.json()["data"] if isinstance(one, dict) and "columns" in one and "data" in one
    ]
    assert plots and max(map(len, plots)) <= 500
    assert len(answer.content) < 600_000


def test_the_page_recovers_by_itself_when_the_server_was_restarted(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    bucket, port = open_bucket(f"local:{tmp_path}/bucket"), free_port()
    with served(tmp_path / "bucket", tmp_path / "log", port=port) as url:
        visited = visit(browser, f"{url}/monitor/")
        visited.wait_for(".verdict h1", "No run yet")
    with Publisher(bucket, "later") as publisher:
        publisher.publish([("w", torch.zeros(8))], {"reward": 0.25})
    with served(tmp_path / "bucket", tmp_path / "log", port=port):
        visited.page.locator(".verdict h1", has_text="Running, version 0").wait_for(timeout=60_000)


def test_a_visitor_cannot_upload(running: Monitor) -> None:
    answer = httpx.post(f"{running.url}/monitor/gradio_api/upload", files={"files": b"hello"}, trust_env=False)
    assert answer.status_code == 404


def test_with_a_login_the_page_asks_for_it_and_then_shows_the_run(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    login = {"MONITOR_USER": "me", "MONITOR_PASSWORD": "sesame"}
    with served(tmp_path / "bucket", tmp_path / "log", settings=login) as url:
        for method, path in (
            ("GET", "config"),
            ("GET", "gradio_api/info"),
            ("POST", "gradio_api/run/predict"),
        ):
            body = REFRESH if method == "POST" else None
            answer = httpx.request(method, f"{url}/monitor/{path}", json=body, trust_env=False)
            assert (path, answer.status_code) == (path, 401)
        assert str(tmp_path) not in httpx.get(f"{url}/monitor/", trust_env=False).text
        visited = visit(browser, f"{url}/monitor/")
        visited.page.get_by_label("username").fill("me", timeout=SEEN_MS)
        visited.page.get_by_label("password").fill("sesame")
        visited.save_screenshot("monitor-login")
        visited.page.get_by_role("button", name="Login").click()
        visited.wait_for(".verdict h1", "No run yet")
        assert visited.asked_elsewhere(url) == []
