"""JSON that means one thing only: UTF-8 text, no doubled keys, no NaN, no lone surrogates, no endless nesting.

A number beyond the range of a double is refused too: it would be read as infinity, which JSON cannot write.
"""

import json
import math
from typing import Any, NoReturn


def parse(raw: bytes | str) -> Any:
    """Raises ValueError, and nothing else, for anything that is not such a document."""
    text = raw.decode() if isinstance(raw, bytes) else raw
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate raises UnicodeEncodeError
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def written(value: Any) -> str:
    """One line that `parse` reads, whatever the value is: a number that is not finite is null, a lone surrogate a
    question mark, and what JSON has no form for is its `str`."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    return str(value).encode(errors="replace").decode()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key comes twice in one object")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is beyond the range of numbers")
    return number
