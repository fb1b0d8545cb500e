"""The poller over a folder bucket that a real publisher fills, and that vanishes."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shared import layout
from shared.bucket import open_bucket
from shared.bucket.folder import FolderBucket
from shared.errors import BucketError, MissingFileError
from shared.monitor import history, units
from shared.monitor.poller import IDLE_PERIOD_S, LOOKED_S, PERIOD_S, RUNS_PERIOD_S, Poller, Units
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer
from shared.types import End
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.monitor.runs import at, chain, manifest, run, write, write_run
from trainer_box.publisher import Publisher

DEADLINE_S = 20.0


class CountingBucket(FolderBucket):
    """Records the paths that are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"local:{root}", root)
        self.reads: list[str] = []

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        return super().read(path)


class FailingBucket(CountingBucket):
    """Cannot list `unlisted`; a file that is `hidden` is listed, but not there."""

    unlisted = hidden = "none"

    def files(self, folder: str) -> list[str]:
        self.reads.append(folder)
        if folder == self.unlisted:
            raise BucketError("told to fail")
        return super().files(folder)

    def read(self, path: str) -> bytes:
        if path == self.hidden:
            raise MissingFileError(path)
        return super().read(path)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class CountingUnit:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self) -> Answer:
        self.asked += 1
        return Answer({"version": self.asked})


@pytest.fixture
def bucket(tmp_path: Path) -> CountingBucket:
    return CountingBucket(tmp_path / "bucket")


@pytest.fixture
def publisher(bucket: CountingBucket) -> Iterator[Publisher]:
    with Publisher(bucket, "r1") as publisher:
        yield publisher


def publish(publisher: Publisher, value: float) -> None:
    publisher.publish([("w", torch.full((64,), value))], {"reward": value})


def polled(poller: Poller, run_id: str = "", version: int | None = None) -> Snapshot:
    poller.look(run_id, version)
    poller.poll()
    return poller.look(run_id, version)


def test_before_the_first_look_nothing_is_known(bucket: CountingBucket) -> None:
    assert Poller(bucket).look().number == 0


def test_an_empty_bucket_has_no_run_and_no_problem(bucket: CountingBucket) -> None:
    snapshot = polled(Poller(bucket))
    assert (snapshot.number, snapshot.run, snapshot.manifests, snapshot.problem) == (1, None, (), "")


def test_versions_appear_in_order_with_the_trainers_numbers(bucket: CountingBucket, publisher: Publisher) -> None:
    poller = Poller(bucket)
    for value in (0.1, 0.2, 0.3):
        publish(publisher, value)
        poller.poll()
    assert [(m.version, m.trainer["reward"]) for m in poller.look().manifests] == [(0, 0.1), (1, 0.2), (2, 0.3)]


def test_manifests_are_read_once(bucket: CountingBucket, publisher: Publisher) -> None:
    publish(publisher, 0.1)
    publish(publisher, 0.2)
    poller = Poller(bucket)
    bucket.reads.clear()
    for _ in range(3):
        poller.poll()
    once = [path for path in bucket.reads if path.startswith(layout.manifests("r1"))]
    assert sorted(once) == [layout.manifest("r1", 0), layout.manifest("r1", 1)]


def test_a_snapshot_is_replaced_only_when_something_changed(bucket: CountingBucket, publisher: Publisher) -> None:
    poller = Poller(bucket)
    publish(publisher, 0.1)
    first = polled(poller)
    assert polled(poller) is first
    publish(publisher, 0.2)
    assert polled(poller).number > first.number
    assert len(first.manifests) == 1


def test_the_newest_run_is_followed_and_others_can_be_looked_at(bucket: CountingBucket, publisher: Publisher) -> None:
    publish(publisher, 0.1)
    poller, pinned = Poller(bucket), Poller(bucket, run_id="r1")
    with Publisher(bucket, "a-later-run") as later:
        publish(later, 0.5)
        assert [m.run_id for m in polled(poller).manifests] == ["a-later-run"]
        assert [m.run_id for m in polled(poller, "r1").manifests] == ["r1"]
        assert [run.run_id for run in poller.look().runs] == ["a-later-run", "r1"]
        assert polled(poller, "no such run") is poller.look()
        assert [m.run_id for m in polled(pinned).manifests] == ["r1"]
        assert [run.run_id for run in pinned.look().runs] == ["r1"]


def test_a_run_that_nobody_looks_at_any_more_is_not_read(tmp_path: Path) -> None:
    for number, name in enumerate(("older", "newer")):
        write_run(tmp_path, run(name, age_s=100 - number), chain(2, run_id=name))
    bucket, clock = CountingBucket(tmp_path), Clock()
    poller = Poller(bucket, clock=clock)
    poller.poll()
    polled(poller, "older")
    clock.now += LOOKED_S
    bucket.reads.clear()
    poller.poll()
    assert layout.pointer("newer") in bucket.reads
    assert [path for path in bucket.reads if path.startswith("older/")] == [layout.run_file("older")]


def test_a_folder_without_a_run_is_left_out(bucket: CountingBucket) -> None:
    bucket.write("notes/readme.txt", b"hello")
    snapshot = polled(Poller(bucket))
    assert (snapshot.run, snapshot.problem) == (None, "")


def test_a_bucket_that_vanishes_is_a_sentence_beside_the_last_known(
    bucket: CountingBucket, publisher: Publisher, tmp_path: Path
) -> None:
    publish(publisher, 0.1)
    poller = Poller(bucket)
    poller.poll()
    (tmp_path / "bucket").rename(tmp_path / "elsewhere")
    snapshot = polled(poller)
    assert bucket.name in snapshot.problem
    assert [m.version for m in snapshot.manifests] == [0]
    (tmp_path / "elsewhere").rename(tmp_path / "bucket")
    assert polled(poller).problem == ""


def test_a_run_that_is_deleted_is_forgotten(bucket: CountingBucket, publisher: Publisher, tmp_path: Path) -> None:
    publish(publisher, 0.1)
    poller = Poller(bucket)
    poller.poll()
    shutil.rmtree(tmp_path / "bucket" / "r1")
    snapshot = polled(poller)
    assert (snapshot.run, snapshot.manifests) == (None, ())


def test_a_damaged_manifest_is_a_sentence_beside_the_others(bucket: CountingBucket, publisher: Publisher) -> None:
    publish(publisher, 0.1)
    bucket.write(layout.manifest("r1", 1), b"{")
    snapshot = polled(Poller(bucket))
    (sentence,) = snapshot.damaged
    assert layout.manifest("r1", 1) in sentence
    assert [m.version for m in snapshot.manifests] == [0]


def test_five_thousand_versions_are_read_in_batches_the_newest_first(tmp_path: Path) -> None:
    write_run(tmp_path, run(), chain(5000))
    poller = Poller(CountingBucket(tmp_path))
    first = polled(poller)
    assert [m.version for m in first.manifests] == list(range(5000 - history.BATCH, 5000))
    assert first.unread == 5000 - history.BATCH
    for _ in range(9):
        poller.poll()
    assert (len(poller.look().manifests), poller.look().unread) == (5000, 0)


def test_the_units_are_asked_only_while_someone_looks(bucket: CountingBucket) -> None:
    replica, environment, clock = CountingUnit(), CountingUnit(), Clock()
    poller = Poller(bucket, units=Units({"Replica A": replica}, environment), clock=clock)
    poller.poll()
    assert (replica.asked, environment.asked) == (0, 0)
    snapshot = polled(poller)
    assert (snapshot.replicas, snapshot.environment) == ({"Replica A": Answer({"version": 1})}, Answer({"version": 1}))
    clock.now += LOOKED_S
    poller.poll()
    assert (replica.asked, environment.asked) == (1, 1)
    assert poller.look().replicas == {}


def test_rollouts_of_the_newest_versions_are_there_and_of_others_when_wanted(tmp_path: Path) -> None:
    write_run(tmp_path, run(), chain(40))
    bucket = CountingBucket(tmp_path)
    for version in range(1, 40):
        bucket.write(layout.rollouts("r1", version), f'{{"version": {version}}}\n'.encode())
    poller = Poller(bucket)
    snapshot = polled(poller)
    assert (snapshot.rollout_versions[0], snapshot.rollout_versions[-1]) == (1, 39)
    assert min(snapshot.rollouts) == 40 - history.NEWEST_ROLLOUTS
    assert polled(poller, version=3).rollouts[3] == ({"version": 3},)


def test_a_line_of_rollouts_that_is_no_json_is_left_out_and_a_file_without_any_is_a_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, run(), chain(3))
    bucket = CountingBucket(tmp_path)
    bucket.write(layout.rollouts("r1", 1), b'{"version": 1}\n{"a": NaN}\n\n{"a": "\\ud83d"}\n')
    bucket.write(layout.rollouts("r1", 2), b'{"a": NaN}\n')
    snapshot = polled(Poller(bucket))
    assert snapshot.rollouts == {1: ({"version": 1},)}
    (sentence,) = snapshot.damaged
    assert sentence == f"{layout.rollouts('r1', 2)} has no line that is a JSON object"


def test_the_end_of_a_run_counts_until_it_goes_on(tmp_path: Path) -> None:
    versions = chain(3)
    write_run(tmp_path, run(), versions[:2], End("r1", 1, at(0), "it was interrupted"))
    poller = Poller(CountingBucket(tmp_path))
    assert polled(poller).has_ended
    write_run(tmp_path, run(), versions[2:])
    snapshot = polled(poller)
    assert snapshot.end is not None and not snapshot.has_ended


def test_on_the_hub_a_new_version_costs_two_calls_and_no_list() -> None:
    bucket, clock = MemoryBucket(name="me/mine"), Clock()
    with Publisher(bucket, "r1") as publisher:
        weights = torch.zeros(4096)
        publisher.publish([("w", weights)])
        poller = Poller(bucket, clock=clock)
        poller.poll()
        bucket.calls.clear()
        clock.now += RUNS_PERIOD_S - 1
        poller.poll()
        assert bucket.calls == ["read 3 files"], "the pointer, and what may come after the newest version"
        weights[0] = 1.0
        publisher.publish([("w", weights)])
        bucket.write(layout.rollouts("r1", 0), b'{"version": 0}\n')
        bucket.calls.clear()
        poller.poll()
        assert bucket.calls == ["read 3 files", "read 1 files"]
        snapshot = poller.look()
        assert [m.version for m in snapshot.manifests] == [0, 1]
        assert {file.path for m in snapshot.manifests for file in m.files} == snapshot.stored
        assert snapshot.rollouts == {0: ({"version": 0},)}
        bucket.write(layout.end("r1", 1), End("r1", 1, at(0)).to_json())
        poller.poll()
        assert poller.look().has_ended


def test_the_thread_polls_until_the_end_of_its_context(tmp_path: Path) -> None:
    with Poller(open_bucket(f"local:{tmp_path}")) as poller:
        deadline = time.monotonic() + DEADLINE_S
        while poller.look().number == 0:
            assert time.monotonic() < deadline, "no snapshot"
            time.sleep(0.01)
        assert poller.alive()
    assert not poller.alive()


def turns(poller: Poller, clock: Clock, seconds: float, look: Callable[[int], object] = lambda tick: None) -> int:
    """As the poller's thread takes them; in each tenth of a second someone may look."""
    due, count = clock.now, 0
    for tick in range(round(seconds * 10)):
        look(tick)
        while clock.now >= due or poller._wake.is_set():
            poller._wake.clear()
            due, count = clock.now + poller.turn(), count + 1
            assert count < 200 * seconds, "it reads without a pause"
        clock.now += 0.1
    return count


def viewers(poller: Poller, count: int, run_id: str = "", version: int | None = None) -> Callable[[int], None]:
    """Each looks every 2 s, one after another."""

    def look(tick: int) -> None:
        for viewer in range(count):
            if tick % 20 == viewer:
                poller.look(run_id, version)

    return look


def no_run(folder: Path) -> FailingBucket:
    return FailingBucket(folder)


def a_run(folder: Path) -> FailingBucket:
    write_run(folder, run(), chain(30))
    for version in range(30):
        write(folder, layout.rollouts("r1", version), b"{}\n")
    write_run(folder, run("older", age_s=9999), chain(3, run_id="older"))
    return FailingBucket(folder)


def a_failing_list(folder: Path) -> FailingBucket:
    bucket = a_run(folder)
    bucket.unlisted = layout.manifests("r1")
    return bucket


def a_missing_manifest(folder: Path) -> FailingBucket:
    bucket = a_run(folder)
    bucket.hidden = layout.manifest("r1", 29)
    return bucket


def a_damaged_manifest(folder: Path) -> FailingBucket:
    bucket = a_run(folder)
    write(folder, layout.manifest("r1", 29), b"{")
    return bucket


def a_damaged_run(folder: Path) -> FailingBucket:
    write(folder, layout.run_file("r1"), b"{")
    return FailingBucket(folder)


def no_folder(folder: Path) -> FailingBucket:
    bucket = FailingBucket(folder)
    folder.rmdir()
    return bucket


STATES = (no_run, a_run, a_failing_list, a_missing_manifest, a_damaged_manifest, a_damaged_run, no_folder)


@pytest.mark.parametrize("choice", [{}, {"run_id": "older"}, {"version": 3}], ids=str)
@pytest.mark.parametrize("prepared", STATES)
def test_twenty_viewers_cost_what_one_does(
    tmp_path: Path, prepared: Callable[[Path], FailingBucket], choice: dict[str, Any]
) -> None:
    costs = []
    for count in (1, 20):
        bucket, unit, clock = prepared(tmp_path / str(count)), CountingUnit(), Clock()
        poller = Poller(bucket, units=Units({"Replica A": unit}), clock=clock)
        turns(poller, clock, LOOKED_S)
        turns(poller, clock, 30, viewers(poller, count, **choice))
        costs.append((unit.asked, bucket.reads))
    assert costs[0] == costs[1]
    assert costs[0][0] <= 2 + 30 / PERIOD_S


@pytest.mark.parametrize("prepared", STATES)
def test_while_nobody_looks_the_bucket_is_read_once_in_a_longer_period(
    tmp_path: Path, prepared: Callable[[Path], FailingBucket]
) -> None:
    clock = Clock()
    assert turns(Poller(prepared(tmp_path / "b"), clock=clock), clock, 4 * IDLE_PERIOD_S) <= 5


def test_the_first_look_after_a_while_and_a_new_choice_are_served_at_once(tmp_path: Path) -> None:
    clock = Clock()
    poller = Poller(a_run(tmp_path), clock=clock)
    turns(poller, clock, 60)
    assert poller.look().environment is None
    turns(poller, clock, 0.1)
    assert min(poller.look(version=3).rollouts) > 3
    turns(poller, clock, 0.1)
    assert 3 in poller.look(version=3).rollouts
    poller.look("older")
    turns(poller, clock, 0.1)
    assert [m.run_id for m in poller.look("older").manifests] == ["older"] * 3


def test_a_run_that_is_left_while_it_is_read_is_not_read_on(tmp_path: Path) -> None:
    write_run(tmp_path, run("older", age_s=9999), chain(1200, run_id="older"))
    write_run(tmp_path, run(), chain(3))
    bucket, clock = CountingBucket(tmp_path), Clock()
    poller = Poller(bucket, clock=clock)
    poller.poll()
    assert polled(poller, "older").unread == 700
    clock.now += LOOKED_S
    turns(poller, clock, 5)
    bucket.reads.clear()
    assert turns(poller, clock, 2 * IDLE_PERIOD_S) <= 3
    assert not [path for path in bucket.reads if path.startswith("older/manifests")]


def test_a_run_that_a_newer_one_follows_while_it_is_read_is_not_read_on(tmp_path: Path) -> None:
    write_run(tmp_path, run("older", age_s=9999), chain(1200, run_id="older"))
    bucket, clock = CountingBucket(tmp_path), Clock()
    poller = Poller(bucket, clock=clock)
    poller.poll()
    write_run(tmp_path, run(), chain(3))
    assert turns(poller, clock, IDLE_PERIOD_S) <= 2
    assert [m.run_id for m in poller.look().manifests] == ["r1"] * 3


def test_rollouts_of_many_versions_are_kept_for_those_who_asked_last(tmp_path: Path) -> None:
    write_run(tmp_path, run(), chain(300))
    for version in range(300):
        write(tmp_path, layout.rollouts("r1", version), b"{}\n")
    bucket, clock = CountingBucket(tmp_path), Clock()
    poller = Poller(bucket, clock=clock)
    polled(poller)
    turns(poller, clock, 25, lambda tick: poller.look(version=tick))
    turns(poller, clock, PERIOD_S, lambda tick: poller.look())
    bucket.reads.clear()
    turns(poller, clock, 10, lambda tick: poller.look())
    assert not [path for path in bucket.reads if "/rollouts/" in path]
    kept = poller.look().rollouts
    assert len(kept) == history.KEPT_ROLLOUTS and {299, 288, 249, 200} <= kept.keys()
    for version in range(250):
        poller.look(version=version)
    poller.poll()
    assert len(poller.look().rollouts) == history.KEPT_ROLLOUTS
    assert {299, 249, 200} <= poller.look().rollouts.keys()


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
