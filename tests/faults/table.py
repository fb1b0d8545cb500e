"""The printed table: one row per scenario and kind of bucket."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.faults.rows import Row
from tests.faults.scene import Outcome

HEAD = (
    "| what happened | bucket | seconds until a newer verified version was served again "
    "| tokens answered from an unverified state | versions lost |\n|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Played:
    """A row with what came of it, or with the first line of why nothing can be told."""

    row: Row
    outcome: Outcome | None
    problem: str = ""

    @property
    def is_kept(self) -> bool:
        return self.outcome is not None and self.outcome.is_kept

    def line(self) -> str:
        found = self.outcome
        cells = (
            [f"{found.seconds:.0f}", str(found.unverified_tokens), str(found.lost)]
            if found
            else [f"**broken**: {self.problem}", "?", "?"]
        )
        return f"| {' | '.join([self.row.text, self.row.kind, *cells])} |"


def table(played: Sequence[Played]) -> str:
    return "\n".join([HEAD, *(one.line() for one in played)])
