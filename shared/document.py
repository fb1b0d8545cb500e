"""A JSON document from the bucket, read strictly: a field that is not exactly what it should be is an IntegrityError.

Knows the types of fields, not which fields a document has.
"""

import re
from typing import Any

from shared import strict_json
from shared.errors import IntegrityError

Json = dict[str, Any]

LARGEST = 2**63 - 1
"""A number beyond 64 bits is none of ours, and cannot be counted with."""


class Document:
    """A JSON object whose fields are asked for by type; an error names the file and the field."""

    def __init__(self, raw: bytes | Json, source: str) -> None:
        self._source = source
        if isinstance(raw, bytes):
            try:
                raw = strict_json.parse(raw)
            except ValueError as error:
                raise IntegrityError(f"{source} is not valid JSON ({len(raw)} bytes): {error}") from error
        if not isinstance(raw, dict):
            raise IntegrityError(f"{source}: expected a JSON object, found {type(raw).__name__}")
        self._fields: Json = raw

    def _get(self, key: str, wanted: type, article: str) -> Any:
        value = self._fields.get(key)
        if not isinstance(value, wanted) or isinstance(value, bool):
            found = type(value).__name__ if key in self._fields else "nothing"
            raise IntegrityError(f"{self._source}: field {key!r} should be {article}, found {found}")
        return value

    def text(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        value: str = self._get(key, str, "text")
        if pattern is not None and not pattern.fullmatch(value):
            raise IntegrityError(f"{self._source}: field {key!r} is malformed: {value!r}")
        return value

    def count(self, key: str, absent: int | None = None) -> int:
        if absent is not None and key not in self._fields:
            return absent
        value: int = self._get(key, int, "a whole number")
        if value < 0:
            raise IntegrityError(f"{self._source}: field {key!r} is negative: {value}")
        if value > LARGEST:
            raise IntegrityError(f"{self._source}: field {key!r} is beyond 64 bits")
        return value

    def version(self, key: str, largest: int) -> int:
        value = self.count(key)
        if value > largest:
            raise IntegrityError(f"{self._source}: field {key!r} is {value}, the largest version is {largest}")
        return value

    def one_of(self, key: str, choices: tuple[str, ...], absent: str | None = None) -> str:
        if absent is not None and key not in self._fields:
            return absent
        value = self.text(key)
        if value not in choices:
            raise IntegrityError(f"{self._source}: field {key!r} is {value!r}, expected one of {', '.join(choices)}")
        return value

    def object(self, key: str) -> Json:
        value: Json = self._get(key, dict, "an object")
        return value

    def numbers(self, key: str) -> dict[str, float]:
        value: dict[str, float] = self.object(key)
        if any(isinstance(item, bool) or not isinstance(item, int | float) for item in value.values()):
            raise IntegrityError(f"{self._source}: field {key!r} holds something that is not a number")
        if any(abs(item) > LARGEST for item in value.values()):
            raise IntegrityError(f"{self._source}: field {key!r} holds a number beyond 64 bits")
        return value

    def array(self, key: str) -> list[Any]:
        value: list[Any] = self._get(key, list, "a list")
        return value

    def supported_format(self, supported: int) -> int:
        found = self.count("format")
        if found != supported:
            raise IntegrityError(f"{self._source} has format {found}, this code reads format {supported}; update it")
        return found
