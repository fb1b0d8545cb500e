"""The poller over runs and files that are not what they should be, and a unit that never answers."""

import shutil
import threading
from pathlib import Path

import pytest

from shared import layout
from shared.monitor import units
from shared.monitor.poller import Poller, Units
from shared.monitor.units import Answer
from shared.types import End
from tests.shared.monitor.polling import Clock, CountingBucket, CountingUnit, polled, turns, viewers
from tests.shared.monitor.runs import at, chain, manifest, run, write, write_run

DEADLINE_S = 20.0


@pytest.mark.parametrize("strange", [b"x", b'{"format": 1, "run_id": "old"}', run().to_json()])
def test_a_run_that_cannot_be_read_is_a_sentence_and_the_others_go_on(tmp_path: Path, strange: bytes) -> None:
    write_run(tmp_path, run(), chain(3))
    poller = Poller(CountingBucket(tmp_path))
    poller.poll()
    write(tmp_path, "old/run.json", strange)
    write_run(tmp_path, run(), [manifest(3)])
    snapshot = polled(poller)
    assert ([one.run_id for one in snapshot.runs], snapshot.manifests[-1].version) == (["r1"], 3)
    assert (snapshot.problem, snapshot.damaged) == ("", ())
    (sentence,) = snapshot.unreadable
    assert "old/run.json" in sentence
    shutil.rmtree(tmp_path / "old")
    assert polled(poller).unreadable == ()


def test_a_run_that_was_replaced_by_one_of_the_same_id_is_read_anew(tmp_path: Path) -> None:
    write_run(tmp_path, run(), chain(10))
    poller = Poller(CountingBucket(tmp_path))
    poller.poll()
    shutil.rmtree(tmp_path / "r1")
    write_run(tmp_path, run(age_s=1), chain(4, reward=0.9))
    snapshot = polled(poller)
    assert snapshot.run == run(age_s=1)
    assert [m.trainer for m in snapshot.manifests] == [{"reward": 0.9}] * 4


@pytest.mark.parametrize("path", [layout.manifest("r1", 2), layout.rollouts("r1", 2), layout.end("r1", 2)])
def test_a_file_that_was_damaged_is_read_again_less_and_less_often(tmp_path: Path, path: str) -> None:
    write_run(tmp_path, run(), chain(3), End("r1", 2, at(0)))
    write(tmp_path, layout.rollouts("r1", 2), b'{"version": 2}\n')
    sound = (tmp_path / path).read_bytes()
    write(tmp_path, path, b"{")
    bucket, clock = CountingBucket(tmp_path), Clock()
    poller = Poller(bucket, clock=clock)
    turns(poller, clock, 200, viewers(poller, 1))
    assert bucket.reads.count(path) == 6, "at first, and after 5, 10, 20, 40 and 80 s more"
    assert len(poller.look().damaged) == 1
    write(tmp_path, path, sound)
    turns(poller, clock, 200, viewers(poller, 1))
    snapshot = poller.look()
    assert snapshot.damaged == ()
    assert (len(snapshot.manifests), len(snapshot.rollouts), snapshot.has_ended) == (3, 1, True)


def test_a_damaged_file_that_is_deleted_is_forgotten(tmp_path: Path) -> None:
    write_run(tmp_path, run(), chain(3))
    write(tmp_path, layout.rollouts("r1", 2), b"{")
    poller = Poller(CountingBucket(tmp_path))
    assert len(polled(poller).damaged) == 1
    (tmp_path / layout.rollouts("r1", 2)).unlink()
    assert polled(poller).damaged == ()


@pytest.mark.parametrize(("run_id", "others"), [("typo", ("r1", "r2")), ("r2", ("r1",)), (None, ())])
def test_of_a_run_that_is_set_it_is_known_which_others_there_are(
    tmp_path: Path, run_id: str | None, others: tuple[str, ...]
) -> None:
    for name in ("r1", "r2"):
        write_run(tmp_path, run(name), chain(2, run_id=name))
    snapshot = polled(Poller(CountingBucket(tmp_path), run_id))
    assert (snapshot.pinned, snapshot.others) == (run_id or "", others)


def test_a_unit_that_never_answers_holds_up_neither_the_poller_nor_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "PATIENCE_S", 0.01)
    released = threading.Event()

    class Hanging:
        def ask(self) -> Answer:
            released.wait(DEADLINE_S)
            return Answer({"version": 1})

    write_run(tmp_path, run(), chain(2))
    before = set(threading.enumerate())
    poller = Poller(CountingBucket(tmp_path), units=Units({"Replica A": Hanging(), "Replica B": CountingUnit()}))
    for _ in range(3):
        snapshot = polled(poller)
    (asking,) = set(threading.enumerate()) - before
    assert asking.daemon
    assert snapshot.replicas["Replica A"].problem == "it gave no answer within 0 s"
    assert (snapshot.replicas["Replica B"].document, len(snapshot.manifests)) == ({"version": 3}, 2)
    released.set()
    asking.join(DEADLINE_S)
    assert polled(poller).replicas["Replica A"] == Answer({"version": 1})
