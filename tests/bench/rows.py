"""What a benchmark prints: rows with our number, a peer's and their ratio, and reasons where there is no number."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

Result = tuple[Table, list[dict[str, Any]]]


@dataclass(frozen=True)
class Row:
    """`case` is what was measured on, `what` the quantity with its unit, `peer` whom it is compared with."""

    case: str
    what: str
    peer: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


@dataclass(frozen=True)
class NotRun:
    """A row without numbers."""

    case: str
    what: str
    reason: str


def result(rows: Iterable[Row | NotRun]) -> Result:
    table = Table("case", "what", "against", "ours", "peer", "ratio")
    found: list[dict[str, Any]] = []
    for row in rows:
        if isinstance(row, NotRun):
            table.add_row(row.case, row.what, f"not run: {row.reason}", "", "", "")
            found.append({"case": row.case, "what": row.what, "not run": row.reason})
            continue
        numbers = {"ours": row.ours, "peer": row.theirs, "ratio": row.ratio}
        table.add_row(row.case, row.what, row.peer, *(f"{number:.4g}" for number in numbers.values()))
        found.append({"case": row.case, "what": row.what, "against": row.peer, **numbers})
    return table, found
