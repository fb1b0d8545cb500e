"""Rows: the trainer is killed, stopped, away, or not the only one."""

import time

from tests.faults.scene import Scene
from tests.faults.stage import CLOCK

STOPPED_S = 90
AWAY_S = 600 // CLOCK


def _uploads_slowly(scene: Scene) -> None:
    """Returns in the middle of the upload of a delta."""
    before = scene.hub.count("xorb-upload")
    scene.hub.inject("slow", "xorb-upload", rate=2_000)
    scene.trainer.point()
    scene.wait_until(lambda: scene.hub.count("xorb-upload") > before, "a delta is uploaded")
    time.sleep(1)


def trainer_killed_in_an_upload(scene: Scene) -> None:
    """kill -9 of the trainer during an upload; it is started again from its checkpoint"""
    _uploads_slowly(scene)
    scene.fault_begins()
    scene.trainer.kill()
    scene.trainer_starts()


def trainer_killed_before_a_manifest(scene: Scene) -> None:
    """kill -9 of the trainer between data and manifest; started again from its checkpoint"""
    scene.trainer.halt_before("/manifests/")
    scene.trainer.point()
    scene.trainer.wait("halted")
    scene.fault_begins()
    scene.trainer.kill()
    scene.trainer_starts()


def trainer_killed_in_the_post(scene: Scene) -> None:
    """kill -9 of the trainer while it waits for the answer to its POST; started again from an older checkpoint"""
    scene.stage.plan.arm(stage_seconds=5)
    scene.trainer.point()
    scene.wait_for_state("staging")
    scene.fault_begins()
    scene.trainer.kill()
    scene.trainer_starts()


def trainer_stopped_in_an_upload(scene: Scene) -> None:
    """kill -STOP of the trainer during an upload, -CONT after 90 s"""
    _uploads_slowly(scene)
    scene.fault_begins()
    scene.trainer.stop()
    time.sleep(STOPPED_S)
    scene.trainer.continue_()


def trainer_away(scene: Scene) -> None:
    """the trainer does nothing for 10 minutes, of a clock that is 10 times faster (keep-alive, recounts)"""
    scene.fault_begins()
    scene.trainer.stop()
    time.sleep(AWAY_S)
    scene.trainer.continue_()


def second_publisher_on_the_host(scene: Scene) -> None:
    """a second trainer of the run on the same host: refused with the name of the first, which goes on"""
    first = scene.trainer
    scene.fault_begins()
    second = scene.trainer_starts()
    scene.trainer = first
    scene.recovers()
    assert f"by process {first.process.pid} on " in second.wait("stopped")["error"]


def second_publisher_elsewhere(scene: Scene) -> None:
    """a second trainer of the run on another host, while the first one uploads: the first is fenced for good"""
    first = scene.trainer
    first.halt_before("/manifests/")
    first.point()
    first.wait("halted")
    scene.fault_begins()
    second = scene.trainer_starts(TMPDIR=str(scene.other_host()))
    second.wait("point")
    first.go_on()
    assert "another publisher" in first.train_until_stopped()["error"]
