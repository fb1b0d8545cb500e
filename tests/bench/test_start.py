"""The bytes of a run's start, of joining it and of keeping it, at a small size."""

import pytest

from tests.bench import start
from tests.bench.steps import SMALLEST

pytestmark = pytest.mark.slow  # uploads with the Hub's client

PLAN = start.Plan(SMALLEST, steps=11)


def test_a_run_starts_with_no_bytes_and_the_peers_with_an_anchor() -> None:
    ours, theirs = (start.play(PLAN, scheme) for scheme in (start.OURS, start.THEIRS))
    anchor = theirs.started
    assert (ours.started, anchor > 300_000) == (0, True)
    assert ours.joined < anchor < theirs.joined < 2 * anchor  # the second anchor, and a delta
    assert 2 * anchor < theirs.written < 4 * anchor
    assert ours.written < ours.stored < anchor


def test_two_anchors_that_are_a_step_apart_are_both_uploaded() -> None:
    size, first, second = start.upload_two_anchors(PLAN.size)
    assert 0 < second <= size and 0 < first <= size
