"""The fault table's rows as tests: the short part in every run, the others with `-m faults`.

All rows with one kind of bucket share a live Space.
"""

import pytest

from tests.faults.places import Kind
from tests.faults.rows import FOLDER, HUB, ROWS, Row, play
from tests.faults.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]

on_the_hub = pytest.mark.parametrize("live_stage", [HUB], indirect=True)
in_a_folder = pytest.mark.parametrize("live_stage", [FOLDER], indirect=True)


def rows(kind: Kind, is_short: bool) -> pytest.MarkDecorator:
    chosen = [row for row in ROWS if (row.kind, row.is_short) == (kind, is_short)]
    return pytest.mark.parametrize("row", chosen, ids=lambda row: row.name)


@on_the_hub
@rows(HUB, is_short=True)
def test_a_fault_costs_neither_a_version_nor_a_wrong_token(live_stage: Stage, row: Row) -> None:
    assert play(row, live_stage).is_kept


@pytest.mark.faults
@on_the_hub
@rows(HUB, is_short=False)
def test_a_longer_fault_costs_neither_a_version_nor_a_wrong_token(live_stage: Stage, row: Row) -> None:
    assert play(row, live_stage).is_kept


@pytest.mark.faults
@in_a_folder
@rows(FOLDER, is_short=False)
def test_a_fault_with_a_bucket_in_a_folder_costs_neither(live_stage: Stage, row: Row) -> None:
    assert play(row, live_stage).is_kept
