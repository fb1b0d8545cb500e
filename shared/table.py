"""The table of a delta file: which tensors change, and how many of their elements.

Knows nothing of where in the file it lies, nor of the weights held.
"""

import json
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence

from shared import strict_json
from shared.bits import parse_spec
from shared.errors import IntegrityError
from shared.types import TensorSpec

Table = Sequence[tuple[TensorSpec, int]]


def longest(specs: Iterable[TensorSpec]) -> int:
    """Bytes that a table of these tensors has at most, however its JSON is written."""
    return 2 + sum(64 + 6 * len(spec.name.encode()) + 22 * len(spec.shape) for spec in specs)


def to_text(table: Table) -> str:
    rows = [[spec.name, spec.dtype, list(spec.shape), count] for spec, count in table]
    return json.dumps(rows, separators=(",", ":"), ensure_ascii=False)


def parse(text: str | bytes) -> Table:
    """The tensors, each with its number of changes. Raises IntegrityError unless it is a table of possible changes."""
    try:
        rows = strict_json.parse(text)
        if not isinstance(rows, list):
            raise TypeError(f"{type(rows).__name__} in the place of a list")
        table = [(parse_spec(*spec), count) for *spec, count in rows]
    except (TypeError, ValueError) as error:
        raise IntegrityError(f"no readable table of tensors: {error!r}") from error
    for spec, count in table:
        if type(count) is not int or not 0 < count <= spec.numel:
            raise IntegrityError(
                f"lists {reprlib.repr(count)} changes of tensor {spec.name!r}, which has {spec.numel} elements"
            )
    if doubled := [name for name, times in Counter(spec.name for spec, _ in table).items() if times > 1]:
        raise IntegrityError(f"lists tensor {doubled[0]!r} twice")
    return table
