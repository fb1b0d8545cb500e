"""What large models would move per step, calculated: parameters, times density, times the bytes measured per change.

Nothing of that size was run. A sync hides behind training as long as each of its two transfers, up and down, is over
within a step; the link below which it no longer does is the bytes over the time of a step.
"""

from collections.abc import Iterator

from tests.bench.payload import measure
from tests.bench.rows import Result, Row, result
from tests.bench.steps import Shapes

PARAMETERS = {"7 B": 7e9, "70 B": 70e9, "405 B": 405e9, "1 T": 1e12}
RATES = {0.01: 8e-7, 0.03: 3e-6}  # a density, and the learning rate at which synthetic weights have about that
STEP_S = 60.0
MEASURED_ON: Shapes = {"weight.0": (1 << 12, 1 << 12), "weight.1": (1 << 12, 1 << 12)}
BLOG = 6.0  # bytes per change: int32 and bf16
WHOLE = 2.0  # bytes per parameter


def run(shapes: Shapes = MEASURED_ON) -> Result:
    costs = measure(shapes, list(RATES.values()))
    per_change = {density: costs[rate].nbytes["ours"] / costs[rate].changed for density, rate in RATES.items()}
    return result(rows(per_change))


def rows(per_change: dict[float, float]) -> Iterator[Row]:
    for name, parameters in PARAMETERS.items():
        for density, each in per_change.items():
            ours, blog, whole = parameters * density * each, parameters * density * BLOG, parameters * WHOLE
            case = f"{name} at {density:.0%}, calculated"
            yield Row(case, "GB per step", "int32 + bf16", ours / 1e9, blog / 1e9)
            yield Row(case, "GB per step", "full anchor", ours / 1e9, whole / 1e9)
            what = f"MB/s below which a step of {STEP_S:.0f} s waits"
            yield Row(case, what, "int32 + bf16", ours / 1e6 / STEP_S, blog / 1e6 / STEP_S)
            yield Row(case, what, "full anchor", ours / 1e6 / STEP_S, whole / 1e6 / STEP_S)
