"""The system's own chromium and a monitor, each one for all tests of a file: nothing is downloaded for these tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.ui.monitors import Monitor, monitor

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Its pages are closed with the test."""
    yield chromium
    for context in chromium.contexts:
        context.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    """One process for all tests of a file."""
    folder = tmp_path_factory.mktemp("monitor")
    (folder / "bucket").mkdir()
    with monitor(folder / "bucket", folder / "log") as started:
        yield started
