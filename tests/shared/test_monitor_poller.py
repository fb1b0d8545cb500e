"""The poller over a folder bucket that a real publisher fills, and that vanishes."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared import layout
from shared.bucket import open_bucket
from shared.bucket.folder import FolderBucket
from shared.monitor.poller import Poller
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
    assert Poller(bucket).snapshot().number == 0


def test_an_empty_bucket_has_no_run_and_no_problem(bucket: CountingBucket) -> None:
    poller = Poller(bucket)
    poller.poll()
    snapshot = poller.snapshot()
    assert (snapshot.number, snapshot.run, snapshot.manifests, snapshot.problem) == (1, None, (), "")


def test_versions_appear_in_order_with_the_trainers_numbers(bucket: CountingBucket, publisher: Publisher) -> None:
    poller = Poller(bucket)
    for value in (0.1, 0.2, 0.3):
        publish(publisher, value)
        poller.poll()
    assert [(m.version, m.trainer["reward"]) for m in poller.snapshot().manifests] == [(0, 0.1), (1, 0.2), (2, 0.3)]


def test_run_files_and_manifests_are_read_once(bucket: CountingBucket, publisher: Publisher) -> None:
    publish(publisher, 0.1)
    publish(publisher, 0.2)
    poller = Poller(bucket)
    bucket.reads.clear()
    for _ in range(3):
        poller.poll()
    assert sorted(bucket.reads) == [layout.manifest("r1", 0), layout.manifest("r1", 1), layout.run_file("r1")]


def test_a_snapshot_is_replaced_only_when_something_changed(bucket: CountingBucket, publisher: Publisher) -> None:
    poller = Poller(bucket)
    publish(publisher, 0.1)
    poller.poll()
    first = poller.snapshot()
    poller.poll()
    assert poller.snapshot() is first
    publish(publisher, 0.2)
    poller.poll()
    assert (poller.snapshot().number, len(first.manifests)) == (first.number + 1, 1)


def test_the_newest_run_is_followed(bucket: CountingBucket, publisher: Publisher) -> None:
    publish(publisher, 0.1)
    poller, pinned = Poller(bucket), Poller(bucket, run_id="r1")
    with Publisher(bucket, "a-later-run") as later:
        publish(later, 0.5)
        poller.poll()
        pinned.poll()
    assert [m.run_id for m in poller.snapshot().manifests] == ["a-later-run"]
    assert [m.run_id for m in pinned.snapshot().manifests] == ["r1"]


def test_a_folder_without_a_run_is_left_out(bucket: CountingBucket) -> None:
    bucket.write("notes/readme.txt", b"hello")
    poller = Poller(bucket)
    poller.poll()
    assert (poller.snapshot().run, poller.snapshot().problem) == (None, "")


def test_a_bucket_that_vanishes_is_a_sentence_beside_the_last_known(
    bucket: CountingBucket, publisher: Publisher, tmp_path: Path
) -> None:
    publish(publisher, 0.1)
    poller = Poller(bucket)
    poller.poll()
    (tmp_path / "bucket").rename(tmp_path / "elsewhere")
    poller.poll()
    snapshot = poller.snapshot()
    assert bucket.name in snapshot.problem
    assert [m.version for m in snapshot.manifests] == [0]
    (tmp_path / "elsewhere").rename(tmp_path / "bucket")
    poller.poll()
    assert poller.snapshot().problem == ""


def test_a_run_that_is_deleted_is_forgotten(bucket: CountingBucket, publisher: Publisher, tmp_path: Path) -> None:
    publish(publisher, 0.1)
    poller = Poller(bucket)
    poller.poll()
    shutil.rmtree(tmp_path / "bucket" / "r1")
    poller.poll()
    assert (poller.snapshot().run, poller.snapshot().manifests) == (None, ())


def test_a_damaged_manifest_is_a_sentence_that_names_it(bucket: CountingBucket, publisher: Publisher) -> None:
    publish(publisher, 0.1)
    bucket.write(layout.manifest("r1", 1), b"{")
    poller = Poller(bucket)
    poller.poll()
    assert layout.manifest("r1", 1) in poller.snapshot().problem


def test_the_thread_polls_until_the_end_of_its_context(tmp_path: Path) -> None:
    bucket = open_bucket(f"local:{tmp_path}")
    with Poller(bucket) as poller:
        deadline = time.monotonic() + DEADLINE_S
        while poller.snapshot().number == 0:
            assert time.monotonic() < deadline, "no snapshot"
            time.sleep(0.01)
        assert poller.alive()
    assert not poller.alive()
