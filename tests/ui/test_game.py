"""The page on which a person plays: a real server process and a real browser, on loopback."""

import functools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, WebSocketRoute, expect

from shared.wordle import feedback, load_words, secret_for
from tests.conftest import ROOT, RunningProcess
from tests.http_servers import LoopbackServer, listening
from tests.space_env.server import get, has_sessions, status, wait_until
from tests.ui.visits import SEEN_MS, Visit, brightness, visit

pytestmark = pytest.mark.slow

KEY = "sesame"
TINY = load_words("tiny")
SECRET = secret_for(7, TINY)
WRONG = [word for word in TINY.answers if word != SECRET]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One process for all tests of this file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    environment = {**os.environ, "PORT": str(port), "HOST": "127.0.0.1", "ENV_API_KEY": KEY}
    with log.open("wb") as out:
        command = [sys.executable, "-m", "space_env.serve"]
        started = RunningProcess(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out), log)
    try:
        started.wait_for_200(f"http://127.0.0.1:{port}/health", 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        started.stop()


@pytest.fixture
def url(server: str) -> str:
    wait_until(has_sessions(server, 0, KEY))
    return server


def sit_down(browser: Browser, url: str, **options: Any) -> Visit:
    """The page, with a game of seed 7 and the tiny list about to begin."""
    player = visit(browser, f"{url}/", **options)
    player.page.locator(".tile").first.wait_for(timeout=SEEN_MS)
    player.page.get_by_label("Words").select_option("tiny")
    player.page.get_by_label("Seed").fill("7")
    player.page.get_by_role("button", name="New game").click()
    return player


def enter(player: Visit, word: str, said: str) -> None:
    """Types a word on the physical keyboard, and waits for what the page says."""
    player.page.keyboard.type(word)
    player.page.keyboard.press("Enter")
    expect(player.page.locator(".say")).to_contain_text(said, timeout=SEEN_MS)


def load_anew(player: Visit) -> None:
    player.page.reload()
    player.page.locator(".tile").first.wait_for(timeout=SEEN_MS)


def marks(player: Visit, row: int) -> str:
    tiles = player.page.locator(".tile").all()[5 * row : 5 * row + 5]
    return "".join(tile.get_attribute("data-mark") or "" for tile in tiles)


def test_a_whole_game_is_played_on_the_keyboard(browser: Browser, url: str) -> None:
    solved = status(url, KEY)["solved"]
    player = sit_down(browser, url)
    enter(player, WRONG[0], "Guesses left: 5.")
    enter(player, "zzzzz", "That cost a guess: not in the word list. Guesses left: 4.")
    enter(player, WRONG[1].upper(), "Guesses left: 3.")
    assert (marks(player, 0), marks(player, 1)) == (feedback(WRONG[0], SECRET), "xxxxx")
    assert SECRET not in player.page.content().lower()
    player.wait_for("#busy", "1 of 256 sessions are open, 1 at play.")
    enter(player, SECRET, f"Solved in 4. The word was {SECRET.upper()}; seed 7.")
    assert marks(player, 3) == "+++++"
    wait_until(has_sessions(url, 0, KEY))
    assert status(url, KEY)["solved"] == solved + 1
    assert player.save_screenshot("game").stat().st_size > 10_000
    assert (player.errors, player.asked_elsewhere(url)) == ([], [])


def test_a_lost_game_tells_the_word_and_a_new_one_begins(browser: Browser, url: str) -> None:
    player = sit_down(browser, url)
    for tries, word in enumerate(WRONG[:5], start=1):
        enter(player, word, f"Guesses left: {6 - tries}.")
    enter(player, WRONG[5], f"Not solved. The word was {SECRET.upper()}; seed 7.")
    player.page.get_by_role("button", name="New game").click()
    enter(player, SECRET, "Solved in 1.")


def test_the_keyboard_on_the_page_can_be_pressed_and_corrected(browser: Browser, url: str) -> None:
    player = sit_down(browser, url, width=390, has_touch=True)
    keys = player.page.get_by_role("group", name="Keyboard")
    for letter in [*SECRET[:4], "q", "Backspace", SECRET[4]]:
        keys.locator(f'[data-key="{letter}"]').tap()
    keys.get_by_role("button", name="Enter").tap()
    expect(player.page.locator(".say")).to_contain_text("Solved in 1.", timeout=SEEN_MS)
    expect(keys.get_by_role("button", name=f"{SECRET[0]}, right place", exact=True)).to_be_visible()


def test_a_game_whose_connection_was_lost_goes_on_where_it_was(browser: Browser, url: str) -> None:
    player, sockets = sit_down(browser, url), list[WebSocketRoute]()

    def pass_on(route: WebSocketRoute) -> None:
        route.connect_to_server()
        sockets.append(route)

    player.page.route_web_socket(re.compile("/play/ws$"), pass_on)
    load_anew(player)
    enter(player, WRONG[0], "Guesses left: 5.")
    sockets[0].close()
    enter(player, WRONG[1], "Guesses left: 4.")
    assert len(sockets) == 2
    assert [marks(player, row) for row in (0, 1)] == [feedback(word, SECRET) for word in WRONG[:2]]


def test_a_page_that_was_loaded_anew_goes_on_with_its_game(browser: Browser, url: str) -> None:
    player = sit_down(browser, url)
    enter(player, WRONG[0], "Guesses left: 5.")
    load_anew(player)
    assert marks(player, 0) == feedback(WRONG[0], SECRET)
    enter(player, SECRET, "Solved in 2.")


def test_a_game_that_has_ended_is_told_again_when_the_page_is_loaded_anew(browser: Browser, url: str) -> None:
    player = sit_down(browser, url)
    enter(player, SECRET, "Solved in 1.")
    load_anew(player)
    expect(player.page.locator(".say")).to_contain_text(f"The word was {SECRET.upper()}; seed 7.", timeout=SEEN_MS)
    expect(player.page.get_by_label("Words")).to_have_value("tiny")


class Delayed:
    """The page's sockets, whose messages reach the server only when they are let through."""

    def __init__(self, player: Visit) -> None:
        self.waiting: list[tuple[WebSocketRoute, str | bytes]] = []
        player.page.route_web_socket(re.compile("/play/ws$"), self._hold)
        load_anew(player)

    def wait_for(self, player: Visit, count: int) -> None:
        for _ in range(SEEN_MS // 20):
            if len(self.waiting) >= count:
                return
            player.page.wait_for_timeout(20)  # in which the routes are served
        raise AssertionError(f"{len(self.waiting)} messages, not {count}")

    def let_through(self, player: Visit, count: int) -> None:
        """The next messages, each when it is there."""
        for _ in range(count):
            self.wait_for(player, 1)
            server, message = self.waiting.pop(0)
            server.send(message)

    def _hold(self, route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        route.on_message(lambda message: self.waiting.append((server, message)))


def test_what_is_typed_while_an_answer_is_under_way_comes_after_it(browser: Browser, url: str) -> None:
    player = sit_down(browser, url)
    sockets = Delayed(player)
    for word in (*WRONG[:2], SECRET):
        player.page.keyboard.type(word)
        player.page.keyboard.press("Enter")
    sockets.let_through(player, 4)  # a reset and three guesses
    expect(player.page.locator(".say")).to_contain_text("Solved in 3.", timeout=SEEN_MS)
    assert [marks(player, row) for row in (0, 1)] == [feedback(word, SECRET) for word in WRONG[:2]]


def test_a_guess_that_was_under_way_costs_a_new_game_nothing(browser: Browser, url: str) -> None:
    player = sit_down(browser, url)
    sockets = Delayed(player)
    player.page.keyboard.type(WRONG[0])
    player.page.keyboard.press("Enter")
    sockets.wait_for(player, 1)  # its reset
    player.page.get_by_label("Seed").fill("7")
    player.page.get_by_role("button", name="New game").click()
    player.page.keyboard.type(SECRET)
    player.page.keyboard.press("Enter")
    sockets.let_through(player, 3)  # that reset, another one, and one guess
    expect(player.page.locator(".say")).to_contain_text("Solved in 1.", timeout=SEEN_MS)


@pytest.fixture
def other_site(url: str, tmp_path: Path) -> Iterator[str]:
    """A page that shows the game in a frame, as the Hub does. The browser takes `localhost` for another site."""
    (tmp_path / "index.html").write_text(f'<iframe src="{url}/" width="600" height="900"></iframe>')
    (tmp_path / "favicon.ico").touch()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path)
    server = LoopbackServer(handler)
    with listening(server):
        yield f"http://localhost:{server.server_port}/"


def test_it_can_be_played_in_a_frame_of_another_site(browser: Browser, other_site: str) -> None:
    player = visit(browser, other_site)
    inside = player.page.frame_locator("iframe")
    inside.locator(".tile").first.click(timeout=SEEN_MS)
    player.page.keyboard.type("zzzzz")
    player.page.keyboard.press("Enter")
    expect(inside.locator(".say")).to_contain_text("That cost a guess: not in the word list.", timeout=SEEN_MS)
    assert player.errors == []


def test_a_server_that_does_not_answer_is_said_to_and_tried_again(browser: Browser, url: str) -> None:
    player = sit_down(browser, url)
    player.page.route_web_socket(re.compile("/play/ws$"), lambda route: None)  # takes all and answers nothing
    load_anew(player)
    enter(player, WRONG[0], "The server does not answer. Press Enter to try again.")


def test_a_server_without_a_place_says_so_and_when_to_try_again(browser: Browser, url: str) -> None:
    players = [sit_down(browser, url) for _ in range(5)]
    for player in players[:4]:
        enter(player, WRONG[0], "Guesses left: 5.")
    enter(players[4], WRONG[0], "4 sessions are open from your address")
    enter(players[0], SECRET, "Solved in 2.")
    players[4].page.keyboard.press("Enter")
    expect(players[4].page.locator(".say")).to_contain_text("Guesses left: 5.", timeout=SEEN_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_and_dark_mode_can_read_it_and_axe_finds_nothing_serious(
    browser: Browser, url: str, scheme: str
) -> None:
    player = sit_down(browser, url, width=390, color_scheme=scheme)
    enter(player, WRONG[0], "Guesses left: 5.")
    enter(player, "zzzzz", "Guesses left: 4.")
    player.page.keyboard.type("ab")
    player.wait_for("#busy", "at play")
    assert player.page.evaluate("document.documentElement.scrollWidth") <= 390
    text = player.page.locator(".wordle h1").evaluate("element => getComputedStyle(element).color")
    assert brightness(text) < 60 if scheme == "light" else brightness(text) > 200
    player.save_screenshot(f"game-phone-{scheme}")
    assert player.serious_violations() == []
    assert player.errors == []


def test_a_visitor_can_neither_upload_nor_ask_for_more_than_the_page(url: str) -> None:
    answer = httpx.post(f"{url}/play/gradio_api/upload", files={"files": b"hello"}, trust_env=False)
    assert answer.status_code in (404, 422)
    assert get(f"{url}/play/config")[0] == 200
    page = httpx.get(f"{url}/", follow_redirects=True, trust_env=False).text
    config = json.dumps(get(f"{url}/play/config")[1])
    assert KEY not in page + config
