"""The page of a vLLM Space that is not set up yet, as its owner sees it: a real process and a real browser."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.conftest import StartProcess
from tests.hub import stand_in
from tests.ui.visits import brightness, visit

pytestmark = pytest.mark.slow


@pytest.fixture
def url(process: StartProcess, free_port: Callable[[], int], tmp_path: Path) -> Iterator[str]:
    """A Space without a key, whose token may not see its bucket."""
    port = free_port()
    space = {"SPACE_ID": "somebody/async-rl-vllm", "SPACE_AUTHOR_NAME": "somebody"}
    place = {"HOST": "127.0.0.1", "PORT": str(port), "HF_TOKEN": "hf_of_a_space", "MODEL": str(tmp_path / "model")}
    unset = dict.fromkeys(("BUCKET", "RUN_ID", "VLLM_API_KEY"), "")
    address = f"http://127.0.0.1:{port}"
    with stand_in(token="hf_of_somebody_else") as hub:
        environment = {**unset, **space, **place, **hub.environment(tmp_path / "xet")}
        process([sys.executable, "-m", "space_vllm.serve"], env=environment, url=f"{address}/")
        yield address


def test_the_page_names_what_is_missing_and_leads_to_where_it_is_set(browser: Browser, url: str) -> None:
    visited = visit(browser, url)
    for sentence in ("VLLM_API_KEY is not set", "bucket somebody/async-rl-weights: HTTP 401", "no config.json"):
        visited.wait_for("li", sentence)
    links = {link.get_attribute("href") for link in visited.page.locator("li a").all()}
    assert "https://huggingface.co/spaces/somebody/async-rl-vllm/settings" in links
    assert visited.serious_violations() == []
    assert visited.asked_elsewhere(url) == []
    assert "hf_of_a_space" not in visited.page.content()
    visited.save_screenshot("setup-light")


def test_a_phone_and_dark_mode_can_read_it(browser: Browser, url: str) -> None:
    visited = visit(browser, url, width=390, color_scheme="dark")
    visited.wait_for("h1", "This Space is not set up yet")
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 390
    text = visited.page.locator("h1").evaluate("element => getComputedStyle(element).color")
    card = visited.page.locator("li").first.evaluate("element => getComputedStyle(element).backgroundColor")
    assert brightness(text) - brightness(card) > 150
    assert visited.serious_violations() == []
    visited.save_screenshot("setup-dark-390")


def test_the_open_page_tells_when_vllm_is_starting_and_makes_way_when_it_answers(browser: Browser, url: str) -> None:
    visited = visit(browser, "about:blank")
    visited.page.clock.install()
    visited.page.goto(url)
    visited.page.clock.fast_forward(31_000)
    visited.wait_for("li", "VLLM_API_KEY is not set")
    visited.page.route("**/", lambda route: route.abort())
    visited.page.clock.fast_forward(31_000)
    visited.wait_for("main", "Nothing is missing any more, and vLLM is starting.")
    visited.page.unroute("**/")
    visited.page.route("**/", lambda route: route.fulfill(body="<title>Monitor</title><h1>The monitor</h1>"))
    visited.page.clock.fast_forward(31_000)
    visited.wait_for("h1", "The monitor")
