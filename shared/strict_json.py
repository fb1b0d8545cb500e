"""JSON that means one thing only: UTF-8 text, no doubled keys, no NaN, no lone surrogates, no endless nesting."""

import json
from typing import Any, NoReturn


def parse(raw: bytes | str) -> Any:
    """Raises ValueError, and nothing else, for anything that is not such a document."""
    text = raw.decode() if isinstance(raw, bytes) else raw
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate raises UnicodeEncodeError
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key comes twice in one object")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
