"""The monitor as a visitor sees it: a real server process and a real browser, on loopback."""

import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch
from playwright.sync_api import Browser

from shared.bucket import open_bucket
from tests.conftest import StartProcess
from tests.ui.visits import brightness, visit
from trainer_box.publisher import Publisher

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def url(process: StartProcess, free_port: Callable[[], int], folder: Path) -> str:
    """A running monitor over `folder`; its vLLM Space is one that cannot be reached."""
    port, nobody = free_port(), free_port()
    command = [sys.executable, "-m", "shared.monitor", "--bucket", f"local:{folder}", "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    process([*command, "--vllm-url", f"http://127.0.0.1:{nobody}"], url=f"{address}/health", deadline_s=120)
    return address


def publish(publisher: Publisher, value: float) -> str:
    return publisher.publish([("w", torch.full((64,), value))], {"reward": value}).fingerprint


def test_a_new_version_appears_without_a_reload_and_without_leaving_the_machine(
    browser: Browser, url: str, folder: Path
) -> None:
    visited = visit(browser, f"{url}/")
    visited.wait_for("#verdict", "No run yet")
    visited.wait_for("#units", "cannot be reached")
    with Publisher(open_bucket(f"local:{folder}"), "run-1") as publisher:
        for version, reward in enumerate((0.25, 0.5)):
            fingerprint = publish(publisher, reward)
            visited.wait_for("#verdict", f"Run run-1, version {version},")
            visited.wait_for("#versions", fingerprint)
    visited.wait_for("#payload", "Anchors: 1")
    assert visited.errors == []
    assert visited.asked_elsewhere(url) == []


def test_the_page_quotes_a_damaged_file_as_text(browser: Browser, url: str, folder: Path) -> None:
    markup = "<img src=x onerror=document.title=1>"
    open_bucket(f"local:{folder}").write("run-1/run.json", f'{{"format": 2, "run_id": "{markup}"}}'.encode())
    visited = visit(browser, f"{url}/monitor/")
    visited.wait_for("#verdict", markup)
    assert visited.page.locator("#verdict img").count() == 0
    assert visited.errors == []


def test_a_phone_and_dark_mode_can_read_it(browser: Browser, url: str, folder: Path) -> None:
    with Publisher(open_bucket(f"local:{folder}"), "run-1") as publisher:
        publish(publisher, 0.25)
    visited = visit(browser, f"{url}/monitor/?__theme=dark", width=390)
    visited.wait_for("#versions", "anchor")
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 390
    text, background = (
        visited.page.locator(place).first.evaluate(f"element => getComputedStyle(element).{colour}")
        for place, colour in (("#verdict h1", "color"), (".gradio-container", "backgroundColor"))
    )
    assert brightness(text) - brightness(background) > 150


def test_a_visitor_cannot_upload(url: str) -> None:
    answer = httpx.post(f"{url}/monitor/gradio_api/upload", files={"files": b"hello"}, trust_env=False)
    assert answer.status_code == 404
