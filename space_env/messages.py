"""What a message may be, over HTTP and WebSockets alike: its size, and a document that OpenEnv can also send back.

OpenEnv repeats an invalid message in its answer, and what it cannot write ends the session. Knows no routes.
"""

from typing import Any

from shared import strict_json

MAX_BYTES = 16 * 1024
MAX_DEPTH = 32
"""Objects and lists within each other. A message that means something has three."""


def parse(raw: bytes | str) -> Any:
    """Raises ValueError, and nothing else, for what is no message."""
    data = raw.encode(errors="surrogatepass") if isinstance(raw, str) else raw
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data)} bytes, and at most {MAX_BYTES} are read")
    value = strict_json.parse(data)
    if _is_deeper(value, MAX_DEPTH):
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        return depth == 0 or any(_is_deeper(inner, depth - 1) for inner in value.values())
    if isinstance(value, list):
        return depth == 0 or any(_is_deeper(inner, depth - 1) for inner in value)
    return False
