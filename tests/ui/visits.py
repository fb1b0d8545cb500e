"""A page of this machine in a real browser: what it shows, what its console reported, every address it asked for."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.conftest import ROOT

SEEN_MS = 20_000
SCREENSHOTS = ROOT / "runs" / "screenshots"


@dataclass
class Visit:
    """An open page, what its console reported as errors, and every address it asked for."""

    page: Page
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("websocket", lambda socket: self.asked.append(socket.url.replace("ws", "http", 1)))

    def wait_for(self, place: str, text: str) -> None:
        self.page.locator(place).get_by_text(text).filter(visible=True).first.wait_for(timeout=SEEN_MS)

    def asked_elsewhere(self, url: str) -> list[str]:
        return [address for address in self.asked if not address.startswith((url, "data:", "blob:"))]

    def serious_violations(self) -> list[dict[str, Any]]:
        """What axe finds, of serious or critical impact."""
        found = Axe().run(self.page).response["violations"]
        return [violation for violation in found if violation["impact"] in ("serious", "critical")]

    def save_screenshot(self, name: str) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
        return SCREENSHOTS / f"{name}.png"

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)


def visit(browser: Browser, url: str, width: int = 1280, **options: Any) -> Visit:
    visited = Visit(browser.new_page(viewport={"width": width, "height": 900}, **options))
    visited.listen()
    visited.page.goto(url)
    return visited


def brightness(colour: str) -> float:
    """0 to 255, of a computed style such as `rgb(1, 2, 3)`."""
    return sum(map(float, re.findall(r"[0-9.]+", colour)[:3])) / 3
