"""The poller over a folder bucket that a real publisher fills, and that vanishes."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared import layout
from shared.bucket import open_bucket
from shared.monitor import history
from shared.monitor.poller import LOOKED_S, RUNS_PERIOD_S, Poller, Units
from shared.monitor.units import Answer
from shared.types import End
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.monitor.polling import Clock, CountingBucket, CountingUnit, polled
from tests.shared.monitor.runs import at, chain, run, write, write_run
from trainer_box.publisher import Publisher

DEADLINE_S = 20.0


@pytest.fixture
def bucket(tmp_path: Path) -> CountingBucket:
    return CountingBucket(tmp_path / "bucket")


@pytest.fixture
def publisher(bucket: CountingBucket) -> Iterator[Publisher]:
    with Publisher(bucket, "r1") as publisher:
        yield publisher


def publish(publisher: Publisher, value: float) -> None:
    publisher.publish([("w", torch.full((64,), value))], {"reward": value})


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


def test_an_end_that_was_taken_back_ends_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, run(), chain(2), End("r1", 1, at(0), "it was interrupted"))
    poller = Poller(CountingBucket(tmp_path))
    assert polled(poller).has_ended
    (tmp_path / layout.end("r1", 1)).unlink()
    assert not polled(poller).has_ended


def test_when_a_version_came_is_known_of_those_that_were_seen_to_come(tmp_path: Path) -> None:
    versions = chain(3)
    write_run(tmp_path, run(), versions[:2])
    poller = Poller(CountingBucket(tmp_path))
    assert polled(poller).arrived_at is None
    write_run(tmp_path, run(), versions[2:])
    assert (came := polled(poller).arrived_at) is not None
    write(tmp_path, layout.rollouts("r1", 2), b"{}\n")
    assert polled(poller).arrived_at == came


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
