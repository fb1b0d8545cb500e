"""The benchmark of applying a delta runs whole, on vLLM's model of a small checkpoint; each result is checked."""

import pytest

from space_vllm import in_parallel
from tests.bench import apply
from tests.bench.steps import SMALLEST

pytestmark = pytest.mark.slow  # imports vLLM


def test_each_density_is_applied_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_parallel, "_SHARE", 1)  # two threads work on a small model too
    plan = apply.Plan(SMALLEST, densities=(0.01, 0.1), threads=(1, 2), repetitions=2)
    found = apply.measure(plan)
    assert [(one.density, one.threads) for one in found] == [(0.01, 1), (0.01, 2), (0.1, 1), (0.1, 2)]
    rows = list(apply.rows(found))
    assert [row.peer for row in rows] == [apply.PATCHES, apply.UNCHECKED, apply.DENSE, apply.BARE] * 8 + [
        apply.PATCHES,
        apply.DENSE,
    ] * 2
    assert all(row.ours > 0 and row.theirs > 0 for row in rows[:32])
