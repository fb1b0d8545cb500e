"""The fault table's rows as tests: the short part in every run, the others with `-m faults`."""

import pytest

from tests.faults.rows import ROWS, Row, play
from tests.faults.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]


def _cases(is_short: bool) -> list[object]:
    """Each with its stage; those that share one follow each other."""
    chosen = sorted((row for row in ROWS if row.is_short == is_short), key=lambda row: row.kind)
    return [pytest.param(row.kind, row, id=f"{row.name}-{row.kind.split()[0]}") for row in chosen]


@pytest.mark.parametrize(("live_stage", "row"), _cases(is_short=True), indirect=["live_stage"])
def test_a_fault_costs_neither_a_version_nor_a_wrong_token(live_stage: Stage, row: Row) -> None:
    assert play(row, live_stage).is_kept


@pytest.mark.faults
@pytest.mark.parametrize(("live_stage", "row"), _cases(is_short=False), indirect=["live_stage"])
def test_a_longer_fault_costs_neither_a_version_nor_a_wrong_token(live_stage: Stage, row: Row) -> None:
    assert play(row, live_stage).is_kept
