"""A short soak beside the long one of `python -m tests.faults.soak`."""

import pytest

from tests.faults.chance import Chance
from tests.faults.long_run import LongRun
from tests.faults.rows import HUB
from tests.faults.soak import flaws
from tests.faults.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.mark.parametrize("live_stage", [HUB], indirect=True)
def test_after_sixty_syncs_with_random_faults_the_weights_are_right_and_nothing_has_grown(live_stage: Stage) -> None:
    run = LongRun(live_stage, 60, 0, Chance(1), print)
    run.play()
    assert flaws(run) == []
