"""Marks for repeated letters: a table with every class of pattern that words have, and an independent definition."""

from collections import defaultdict
from itertools import product

import pytest

from shared.wordle import ABSENT, ELSEWHERE, RIGHT, feedback, load_words

Class = tuple[int, int, int]
"""How often a letter is in the guess, in the secret, and in the same place of both."""

TABLE = [
    ((1, 2, 0), "a", "drama", "abbey", "?----"),
    ((1, 2, 1), "l", "hello", "world", "-?-+-"),
    ((1, 3, 0), "e", "eerie", "bless", "--?--"),
    ((1, 3, 1), "e", "geese", "crane", "----+"),
    ((1, 3, 1), "m", "mamma", "moist", "+----"),
    ((2, 0, 0), "o", "crane", "moody", "-----"),
    ((2, 1, 0), "p", "panda", "apple", "??---"),
    ((2, 1, 1), "e", "shine", "sense", "+-?-+"),
    ((2, 1, 1), "e", "spare", "spree", "++?-+"),
    ((2, 2, 0), "a", "drama", "aalii", "??---"),
    ((2, 2, 1), "a", "chara", "adapt", "?-+--"),
    ((2, 2, 1), "l", "skill", "label", "?---+"),
    ((2, 2, 2), "l", "hello", "belly", "-+++-"),
    ((2, 3, 0), "a", "abaca", "banal", "??-?-"),
    ((2, 3, 1), "a", "abaca", "aalii", "+?---"),
    ((2, 3, 2), "a", "abaca", "aback", "++++-"),
    ((3, 0, 0), "m", "crone", "mamma", "-----"),
    ((3, 1, 0), "a", "bacon", "abaca", "??-?-"),
    ((3, 1, 1), "e", "spare", "geese", "---?+"),
    ((3, 1, 1), "m", "moist", "mamma", "+----"),
    ((3, 2, 0), "a", "banal", "abaca", "???--"),
    ((3, 2, 1), "a", "aalii", "abaca", "+-?--"),
    ((3, 2, 2), "a", "aback", "abaca", "++++-"),
    ((3, 3, 1), "l", "lolls", "allyl", "-?+-?"),
    ((3, 3, 2), "e", "eerie", "geese", "-+?-+"),
    ((3, 3, 2), "e", "geese", "eerie", "?+--+"),
    ((3, 3, 2), "f", "fluff", "faffs", "+-?+-"),
    ((3, 3, 3), "a", "agama", "abaca", "+-+-+"),
    ((3, 3, 3), "m", "mamma", "mummy", "+-++-"),
    ((3, 3, 3), "m", "mummy", "mamma", "+-++-"),
]


def places(word: str, letter: str) -> frozenset[int]:
    return frozenset(i for i, other in enumerate(word) if other == letter)


def class_of(guess: frozenset[int], secret: frozenset[int]) -> Class:
    return len(guess), len(secret), len(guess & secret)


def classes_of_words(words: frozenset[str]) -> set[Class]:
    """Every class with a repeated letter that two of these words have."""
    by_letter: dict[str, set[frozenset[int]]] = defaultdict(set)
    for word in words:
        for letter in word:
            by_letter[letter].add(places(word, letter))
    found = {class_of(g, s) for known in by_letter.values() for g, s in product(known, [*known, frozenset[int]()])}
    return {found_class for found_class in found if max(found_class[:2]) > 1}


@pytest.mark.parametrize(("expected", "letter", "secret", "guess", "marks"), TABLE)
def test_repeated_letters_are_marked_as_the_table_says(
    expected: Class, letter: str, secret: str, guess: str, marks: str
) -> None:
    assert class_of(places(guess, letter), places(secret, letter)) == expected
    assert feedback(guess, secret) == marks


def test_the_table_has_every_class_of_repeated_letters_that_the_words_have() -> None:
    assert {row[0] for row in TABLE} >= classes_of_words(load_words("full").allowed)


def by_search(guess: str, secret: str) -> str:
    """Pairs each letter of the guess with a letter of the secret that nobody else has: in place first, then the
    leftmost that is free. No counting."""
    taken = {i for i in range(5) if guess[i] == secret[i]}
    marks = [RIGHT if i in taken else ABSENT for i in range(5)]
    for i in range(5):
        free = [j for j in range(5) if j not in taken and secret[j] == guess[i]]
        if marks[i] != RIGHT and free:
            marks[i] = ELSEWHERE
            taken.add(free[0])
    return "".join(marks)


def test_marks_are_those_of_an_independent_search_for_all_pairs_of_400_words() -> None:
    repeating = sorted(word for word in load_words("full").allowed if len(set(word)) < 5)
    words = sorted({*repeating[::10], *load_words("full").answers[::11]})
    assert len(words) > 400
    for guess, secret in product(words, words):
        assert feedback(guess, secret) == by_search(guess, secret), (guess, secret)
