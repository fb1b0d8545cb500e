"""Marks against known hard cases and an independent definition; word lists and secrets as committed."""

import itertools
import re
import subprocess
import sys
from importlib.resources import files
from itertools import product
from pathlib import Path

import pytest

from shared.wordle import ABSENT, ELSEWHERE, RIGHT, WORD_LISTS, feedback, load_words, render, secret_for
from shared.words import make

needs_scowl = pytest.mark.skipif(not make.SCOWL.is_dir(), reason="Debian's scowl package is not installed")


@pytest.mark.parametrize(
    ("secret", "guess", "marks"),
    [
        ("spree", "spare", "++-?+"),
        ("spare", "spree", "++?-+"),
        ("apple", "panda", "??---"),
        ("stage", "spasm", "+-+--"),
        ("skill", "label", "?---+"),
        ("shine", "sense", "+-?-+"),
        ("chara", "adapt", "?-+--"),
        ("apple", "apple", "+++++"),
        ("crane", "moist", "-----"),
    ],
)
def test_hard_cases_are_marked_as_published_bug_reports_say_they_should_be(
    secret: str, guess: str, marks: str
) -> None:
    assert feedback(guess, secret) == marks


def check_marks(guess: str, secret: str, marks: str) -> None:
    """The rules stated letter by letter, without a running count."""
    assert [m == RIGHT for m in marks] == [g == s for g, s in zip(guess, secret, strict=True)]
    for letter in set(guess):
        of_letter = [m for g, m in zip(guess, marks, strict=True) if g == letter]
        not_right = [m for m in of_letter if m != RIGHT]
        assert len(of_letter) - of_letter.count(ABSENT) == min(len(of_letter), secret.count(letter))
        assert not_right == sorted(not_right, key=[ELSEWHERE, ABSENT].index)


def test_marks_hold_the_rules_for_all_pairs_of_150_words() -> None:
    words = sorted(load_words("full").allowed)[::43][:144] + ["eerie", "mamma", "geese", "level", "added", "allay"]
    assert len(words) == 150
    for guess, secret in product(words, words):
        check_marks(guess, secret, feedback(guess, secret))


def test_words_of_different_length_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        feedback("crane", "cranes")


def test_a_board_line_is_each_letter_followed_by_its_mark() -> None:
    assert render("crane", "-?+--") == "C-R?A+N-E-"


@pytest.mark.parametrize(
    ("name", "answers", "allowed"),
    [("tiny", 128, 442), ("small", 442, 6381), ("medium", 946, 6381), ("full", 2271, 6381)],
)
def test_the_lists_have_the_documented_sizes_and_hold_only_words(name: str, answers: int, allowed: int) -> None:
    words = load_words(name)
    assert (len(words.answers), len(words.allowed)) == (answers, allowed)
    assert set(words.answers) <= words.allowed
    assert list(words.answers) == sorted(set(words.answers))
    assert all(re.fullmatch("[a-z]{5}", word) for word in words.allowed)
    assert not words.allowed & make.BLOCKED


def test_each_list_is_part_of_the_next_harder_one() -> None:
    lists = [load_words(name) for name in WORD_LISTS]
    for easier, harder in itertools.pairwise(lists):
        assert set(easier.answers) < set(harder.answers)
        assert easier.allowed <= harder.allowed


def test_usual_openers_may_be_guessed() -> None:
    assert load_words("full").allowed >= {"crane", "slate", "trace", "stare", "adieu"}


def test_an_unknown_list_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="no word list named 'huge'; choose one of tiny, small, medium, full"):
        load_words("huge")


def test_the_notice_the_lists_need_is_shipped_with_them() -> None:
    notice = files("shared.words").joinpath("LICENSE").read_text()
    assert "Copyright 2000-2011 by Kevin Atkinson" in notice
    assert "that both that copyright notice and this permission notice appear" in notice


@needs_scowl
def test_the_committed_lists_are_what_the_script_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = make.HERE
    monkeypatch.setattr(make, "HERE", tmp_path)
    make.main()
    for name in ("tiny_answers", "tiny_allowed", "medium_answers", "full_answers", "full_allowed"):
        assert (make.HERE / f"{name}.txt").read_bytes() == (committed / f"{name}.txt").read_bytes()


def test_every_answer_is_some_seeds_secret() -> None:
    words = load_words("tiny")
    assert {secret_for(seed, words) for seed in range(3000)} == set(words.answers)


def test_the_same_seed_gives_the_same_secret_in_another_process() -> None:
    code = "from shared.wordle import *; print(*(secret_for(s, load_words(n)) for n in WORD_LISTS for s in range(50)))"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == [secret_for(s, load_words(n)) for n in WORD_LISTS for s in range(50)]


def test_a_seeds_secret_does_not_change_between_releases() -> None:
    assert [secret_for(seed, load_words("tiny")) for seed in (0, 7, -1, 2**63)] == ["horse", "level", "pause", "added"]
