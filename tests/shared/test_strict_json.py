import math

import pytest

from shared.strict_json import parse, written


def test_plain_documents_are_parsed_from_bytes_and_text() -> None:
    assert parse(b'{"a": [1, 2.5, null, "\xc3\xa9"]}') == {"a": [1, 2.5, None, "\u00e9"]}
    assert parse('"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a": 1} x',
        b'{"a": 1, "a": 1}',
        b'[{"b": {"a": 1, "a": 2}}]',
        b"[NaN]",
        b"[Infinity]",
        b"[-Infinity]",
        b'"\\ud800"',
        b'{"\\uDfff": 1}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 5000,
        "{}".encode("utf-16"),
    ],
)
def test_anything_else_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        parse(raw)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"a": [1, 2.5, None, True, "\u00e9"]}, {"a": [1, 2.5, None, True, "\u00e9"]}),
        ([math.inf, -math.inf, (math.nan,)], [None, None, [None]]),
        ({"\ud83d": "x\udfff", 5: "\U0001f600"}, {"?": "x?", "5": "\U0001f600"}),
        ({"a": {3}, "b": b"x"}, {"a": "{3}", "b": "b'x'"}),
    ],
)
def test_what_is_written_can_be_parsed(value: object, read: object) -> None:
    assert parse(written(value)) == read
    assert "\n" not in written(value)
