"""Growth is what comes after the warm-up, and what outliers do not make."""

import psutil

from tests.faults.meter import Meter, Sample


def meter(*megabytes: float) -> Meter:
    return Meter([Sample(value, 10, 3) for value in megabytes])


def test_a_warm_up_is_not_growth() -> None:
    assert meter(*range(40), *[40.0] * 60).growth() == Sample(0, 0, 0)


def test_a_slow_rise_is() -> None:
    assert meter(*range(100)).growth().megabytes == 40


def test_single_peaks_are_not() -> None:
    assert meter(*[40.0] * 98, 900.0, 40.0).growth().megabytes == 0


def test_another_process_begins_anew() -> None:
    one = meter(1.0)
    one.look(psutil.Process())
    one.look(psutil.Process())
    assert len(one.samples) == 2
