"""Builds the committed word lists from Debian's `scowl` package (2020.12.07, `apt-get install scowl`).

Run `python -m shared.words.make` from the top of the repository. The same scowl gives the same bytes.
SCOWL grades words by size: 10 holds the most common ones, 70 what a large dictionary has. Sizes above 70 are left
out, because they bring a further licence clause. The licence notice is in LICENSE beside this file.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

SCOWL = Path("/usr/share/dict/scowl")
HERE = Path(__file__).parent
SIZES = (10, 20, 35, 40, 50, 55, 60, 70)
FIVE_LETTERS = re.compile("[a-z]{5}")
TINY_ANSWERS = 128

BLOCKED = frozenset(
    """
    bitch boong chink cocks coons cunts dagos darky dicks dykes fagot fucks gooks gypsy homos honky kafir kikes
    kraut limey micks nance negro nigga paddy poofs pussy queer raped raper rapes sambo sluts spics squaw titty
    twats wanks whore
    """.split()
)


def words_up_to(size: int) -> set[str]:
    """The five-letter lower-case words of the american and english lists of at most this size."""
    files = [SCOWL / f"{area}-words.{n}" for n in SIZES if n <= size for area in ("american", "english")]
    lines = [line for path in files if path.exists() for line in path.read_text(encoding="iso-8859-1").splitlines()]
    return {line for line in lines if FIVE_LETTERS.fullmatch(line)}


def without_plurals(words: Iterable[str]) -> set[str]:
    """Drops every word that ends in a single s (plurals, third persons, and a few innocent ones)."""
    return {word for word in words if not word.endswith("s") or word.endswith("ss")}


def digest(word: str) -> bytes:
    return hashlib.blake2b(word.encode(), digest_size=8).digest()


def write(name: str, words: Iterable[str]) -> None:
    lines = sorted(words)
    (HERE / f"{name}.txt").write_text("".join(f"{word}\n" for word in lines), encoding="ascii")
    print(f"{name}.txt: {len(lines)} words")


def main() -> None:
    common = without_plurals(words_up_to(10)) - BLOCKED
    write("tiny_answers", sorted(common, key=digest)[:TINY_ANSWERS])
    write("tiny_allowed", common)
    write("medium_answers", without_plurals(words_up_to(20)) - BLOCKED)
    write("full_answers", without_plurals(words_up_to(35)) - BLOCKED)
    write("full_allowed", words_up_to(70) - BLOCKED)


if __name__ == "__main__":
    main()
