"""What the page says and offers, without a browser; how it plays is in tests/ui."""

import re

from shared.wordle import GUESSES, LETTERS, WORD_LISTS
from space_env.page.app import HERE, sentence
from space_env.sessions import Desk


def test_the_page_says_how_busy_the_server_is() -> None:
    desk = Desk()
    assert sentence(desk.status()) == "0 of 256 sessions are open, 0 at play."
    for won in (True, True, False):
        desk.ledger.game_ended(won)
    assert sentence(desk.status()) == "0 of 256 sessions are open, 0 at play. Games played: 3, solved: 67%."


def test_the_page_offers_the_word_lists_there_are() -> None:
    board = (HERE / "board.html").read_text()
    assert re.findall(r'<option value="(\w+)"', board) == list(WORD_LISTS)


def test_the_board_is_as_large_as_the_game() -> None:
    assert f"GUESSES = {GUESSES}, LETTERS = {LETTERS}" in (HERE / "board.js").read_text()


def test_the_page_loads_nothing_from_elsewhere() -> None:
    texts = [(HERE / name).read_text() for name in ("board.html", "board.js", "page.css")]
    assert not [text for text in texts if re.search(r"(https?:)?//[a-z]", text)]
