"""Rows: vLLM is killed, stopped or away, answers are cut, a disk is full."""

import time

from tests.faults.scene import Scene
from tests.faults.vllm_processes import API, CORE, WORKER, part_of, small_files_only, stopped

STOPPED_S = 90
POINTS_AWAY = 10
CUT_AFTER_S = 5.0
ANCHOR_RATE = 8_000  # bytes per second: an anchor of the tiny model takes 30 s
SMALL = 100_000  # bytes, less than half an anchor


def vllm_killed_while_staging(scene: Scene) -> None:
    """kill -9 of vLLM's worker while it stages a delta"""
    scene.stage.plan.arm(stage_seconds=10)
    scene.trainer.point()
    scene.wait_for_state("staging")
    scene.fault_begins()
    part_of(scene.server, WORKER).kill()


def vllm_killed_while_applying(scene: Scene) -> None:
    """kill -9 of vLLM's engine process while half of a delta is placed"""
    scene.stage.plan.arm(apply_slowly=1, apply_seconds=10)
    scene.trainer.point()
    scene.wait_for_state("applying")
    time.sleep(1)
    scene.fault_begins()
    part_of(scene.server, CORE).kill()


def worker_stopped_while_applying(scene: Scene) -> None:
    """kill -STOP of vLLM's worker while half of a delta is placed, -CONT after 90 s"""
    worker = part_of(scene.server, WORKER)
    scene.stage.plan.arm(apply_slowly=1, apply_seconds=5)
    scene.trainer.point()
    scene.wait_for_state("applying")
    time.sleep(1)
    scene.fault_begins()
    with stopped(worker):
        time.sleep(STOPPED_S)


def answers_cut(scene: Scene) -> None:
    """every connection to the Space is cut after 5 s, and an anchor takes it 30 s"""
    scene.trainer.anchor()
    scene.hub.inject("slow", "xorb", rate=ANCHOR_RATE, times=0)
    scene.stage.proxy.cut_after_s = CUT_AFTER_S
    scene.stage.proxy.cut()  # a connection that is kept open was made without that limit
    cuts = scene.stage.proxy.cuts
    try:
        scene.fault_begins()
        scene.recovers()
    finally:
        scene.stage.proxy.cut_after_s = None
        scene.hub.clear()
    assert scene.stage.proxy.cuts > cuts + 3, "nothing was cut"


def disk_full(scene: Scene) -> None:
    """the Space's disk is full (its process may write no file over 100 kB, for 20 s) when an anchor arrives"""
    scene.trainer.anchor()
    with small_files_only(part_of(scene.server, API), SMALL):
        scene.fault_begins()
        scene.trainer.point()
        time.sleep(20)
        assert scene.served_version() == 1, "the anchor could be staged all the same"


def space_away(scene: Scene) -> None:
    """the Space is away for 10 sync points (kill -9 of vLLM's API server), and training goes on"""
    scene.fault_begins()
    part_of(scene.server, API).kill()
    for number in range(POINTS_AWAY):
        scene.trainer.point()
        scene.wait_until(lambda: scene.trainer.is_free, f"sync point {number} is taken")
    assert scene.served_version() == -1, "the Space was back too early"
