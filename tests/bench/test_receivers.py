"""The receivers' benchmark runs whole, at a small size: each receiver gets what was published, and costs nothing."""

import pytest

from tests.bench import receivers
from tests.bench.steps import SMALLEST

pytestmark = pytest.mark.slow  # starts processes that import torch


def test_two_receivers_cost_the_trainer_the_calls_and_bytes_of_one() -> None:
    plan = receivers.Plan(SMALLEST, counts=(1, 2), steps=1, rounds=1)
    found = receivers.measure(plan)
    assert found[1].calls == found[2].calls
    assert found[2].megabytes == pytest.approx(found[1].megabytes, rel=0.1)
    sent = [row for row in receivers.rows(found) if row.peer == "sent to each"]
    assert [round(row.ratio, 1) for row in sent] == [1.0, 0.5]
