"""What is a message and what is not, to the byte and to the bracket."""

import json

import pytest

from space_env.messages import MAX_BYTES, MAX_DEPTH, parse


def nested(depth: int, opening: str, closing: str) -> str:
    return opening * depth + closing * depth


@pytest.mark.parametrize(("opening", "inner", "closing"), [("[", "", "]"), ('{"a":', "1", "}"), ('[{"a":', "1", "}]")])
def test_a_message_may_be_nested_so_deep_and_no_deeper(opening: str, inner: str, closing: str) -> None:
    levels = MAX_DEPTH // len([c for c in opening if c in "[{"])
    text = opening * levels + inner + closing * levels
    assert parse(text) == json.loads(text)
    with pytest.raises(ValueError, match="nested more than 32 deep"):
        parse(f"[{text}]")


def test_what_is_nested_endlessly_is_refused_as_well() -> None:
    with pytest.raises(ValueError, match="nested"):
        parse("[" * 8000 + "]" * 8000)


@pytest.mark.parametrize("letter", ["x", "\u00e9"])
def test_a_message_may_have_so_many_bytes_and_no_more(letter: str) -> None:
    text = json.dumps(letter * ((MAX_BYTES - 2) // len(letter.encode())), ensure_ascii=False)
    assert parse(text) == parse(text.encode())
    with pytest.raises(ValueError, match="it has 16385 bytes, and at most 16384 are read"):
        parse(text + " ")
