"""Rows: the bucket is slow, refuses, truncates, loses and lists late."""

from shared import layout
from tests.faults.scene import Scene


def bucket_slow(scene: Scene) -> None:
    """a bucket that moves 3 kB per second"""
    scene.hub.inject("slow", "storage", rate=3_000, times=0)
    scene.fault_begins()
    scene.recovers()
    scene.hub.clear()


def bucket_refuses(scene: Scene) -> None:
    """a bucket that answers 503 and then 429, with Retry-After, more often than a call is repeated"""
    scene.hub.inject("status", "hub", status=503, retry_after=1, times=8)
    scene.hub.inject("status", "hub", status=429, retry_after=2, times=8)
    scene.fault_begins()


def bucket_truncates(scene: Scene) -> None:
    """a bucket whose answers break off in their middle, and one that is damaged"""
    scene.hub.inject("truncate", "xorb", times=2)
    scene.hub.inject("damage", "xorb")
    scene.hub.inject("truncate", "info", times=2)
    before = scene.hub.count("xorb")
    scene.fault_begins()
    scene.recovers()
    assert scene.hub.count("xorb") >= before + 4, "no download was struck"


def bucket_loses_a_delta(scene: Scene) -> None:
    """a bucket that loses a delta for good before the Space has it: an anchor follows"""
    scene.trainer.halt_before("/latest.json")
    scene.trainer.point()
    scene.trainer.wait("halted")
    scene.fault_begins()
    scene.hub.remove(scene.stage.place.name, layout.delta(scene.run_id, 2))
    scene.destroyed.add(2)
    scene.trainer.go_on()


def bucket_lists_late(scene: Scene) -> None:
    """a bucket that lists files, and has their bytes, some seconds after it said that it stored them"""
    scene.hub.inject("list late", "batch", path="/deltas/", seconds=6)
    scene.hub.inject("bytes late", "batch", path="/manifests/", seconds=4)
    scene.fault_begins()
