"""The trainer process of the fault table: told what to do, killed, and started again on its checkpoint."""

import os
from pathlib import Path

import pytest

from shared.bucket import open_bucket
from tests.conftest import ROOT
from tests.faults.training import Task, Training
from tests.trainer_box.fake_space import fake_space

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_killed_trainer_goes_on_from_its_checkpoint_with_a_new_number(tmp_path: Path) -> None:
    with fake_space("tiny") as space:
        task = Task(f"local:{tmp_path / 'bucket'}", "run", space.url, tmp_path / "run", seed=1)
        space.follow(open_bucket(task.bucket))
        with Training(task, ENVIRONMENT) as trainer:
            trainer.wait("point")
            trainer.point()
            trainer.wait("synced", lambda event: event["version"] == 1)
            trainer.save()
            trainer.halt_before("/manifests/")
            trainer.point()
            assert trainer.wait("halted")["path"] == "run/manifests/000002.json"
            assert trainer.whole() == {0, 1}
        with Training(task, ENVIRONMENT) as trainer:
            assert trainer.wait("point")["version"] == 1
            trainer.point()
            trainer.wait("synced", lambda event: event["version"] == 3)
            assert trainer.end() == {"event": "ended", "version": 3, "step": 2}
            assert trainer.whole() == {3}
