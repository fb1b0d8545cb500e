"""The benchmark of applying a delta runs whole, on vLLM's model of a small checkpoint; each result is checked."""

import pytest

from tests.bench import apply
from tests.bench.steps import SMALLEST

pytestmark = pytest.mark.slow  # imports vLLM


def test_each_density_is_applied_in_every_way() -> None:
    found = apply.measure(apply.Plan(SMALLEST, densities=(0.01, 0.1), repetitions=2))
    assert [one.density for one in found] == [0.01, 0.1]
    rows = list(apply.rows(found))
    assert [row.peer for row in rows] == [apply.PATCHES, apply.UNCHECKED, apply.DENSE, apply.BARE] * 4 + [
        apply.PATCHES,
        apply.DENSE,
    ]
    assert all(row.ours > 0 and row.theirs > 0 for row in rows[:16])
