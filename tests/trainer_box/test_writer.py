"""One writer per run: on this host by a lock, elsewhere by epochs; and what a crash leaves is taken over."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared import layout
from shared.bucket import open_bucket
from shared.errors import BucketError, FencedError, SyncError
from shared.reader import RunReader
from tests.conftest import ROOT
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import copies, model, nudge, same
from tests.trainer_box.publishing import received
from trainer_box.publisher import Publisher

HOLDER = """
import sys
from shared.bucket import open_bucket
from tests.shared.weights import model
from trainer_box.publisher import Publisher
publisher = Publisher(open_bucket(sys.argv[1]), "r")
publisher.publish(model().items())
print("published", flush=True)
sys.stdin.read()
"""


@dataclass
class InterruptedBucket(MemoryBucket):
    """Calls `meanwhile` once, after the first file whose path starts with `after` has been written."""

    after: str = ""
    meanwhile: Callable[[], None] | None = None

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        super().write(path, source, replace=replace)
        if self.meanwhile is not None and path.startswith(self.after):
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()


def test_a_second_publisher_in_one_process_is_refused_by_name_of_the_first(tmp_path: Path) -> None:
    bucket = open_bucket(f"local:{tmp_path}")
    first = Publisher(bucket, "r")
    with pytest.raises(BucketError, match=r"run 'r' is being written already, by process \d+ on .* since 20"):
        Publisher(open_bucket(f"local:{tmp_path}/../{tmp_path.name}"), "r")
    with Publisher(bucket, "another"):
        assert first.publish(model().items()).version == 0
    first.close()
    with Publisher(bucket, "r") as second:
        assert second.publish(model().items()).version == 1


def test_a_run_whose_opening_failed_is_free_again(tmp_path: Path) -> None:
    bucket = open_bucket(f"local:{tmp_path}")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(SyncError, match="run.json"):
            Publisher(bucket, "r")


def test_a_killed_process_gives_its_run_free_at_once(tmp_path: Path) -> None:
    name = f"local:{tmp_path}"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, name], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "published\n"
        with pytest.raises(BucketError, match=f"by process {holder.pid} on "):
            Publisher(open_bucket(name), "r")
        holder.send_signal(signal.SIGSTOP)  # it may wake up again, so it still is the one writer
        with pytest.raises(BucketError, match=f"by process {holder.pid} on "):
            Publisher(open_bucket(name), "r")
        holder.kill()
        holder.wait()
        with Publisher(open_bucket(name), "r") as publisher:
            assert publisher.publish(model().items()).version == 1


def test_whoever_opens_a_run_elsewhere_fences_the_one_before_even_before_it_publishes() -> None:
    bucket = MemoryBucket()
    first, weights = Publisher(bucket, "r"), model()
    whole = first.publish(weights.items())
    second = Publisher(bucket, "r")
    with pytest.raises(FencedError, match="another publisher: version 0 is of writer epoch 2, this one has 1"):
        first.publish(weights.items())
    with pytest.raises(SyncError, match="closed"):
        first.publish(weights.items())
    first.close()
    assert RunReader(bucket, "r").newest() == whole
    nudge(weights, 1)
    assert second.publish(weights.items()).version == 1
    assert same(received(bucket), weights)


@pytest.mark.parametrize("after", ["r/deltas", "r/manifests", "r/latest"])
def test_a_takeover_in_the_middle_of_a_publish_leaves_one_writer_and_whole_versions(after: str) -> None:
    bucket = InterruptedBucket()
    first, weights = Publisher(bucket, "r"), model()
    first.publish(weights.items())
    nudge(weights, 1)
    bucket.after, opened = after, list[Publisher]()
    bucket.meanwhile = lambda: opened.append(Publisher(bucket, "r"))
    try:
        first.publish(weights.items())
    except FencedError:
        assert after != "r/latest"
    with pytest.raises(SyncError):
        first.publish(weights.items())
    (second,) = opened
    theirs = copies(weights)
    nudge(theirs, 2)
    manifest = second.publish(theirs.items())
    assert manifest.writer_epoch == 2
    assert RunReader(bucket, "r").newest() == manifest
    assert same(received(bucket), theirs)


def test_two_publishers_that_both_began_the_run_are_not_both_believed() -> None:
    bucket = MemoryBucket()
    first, second = Publisher(bucket, "r"), Publisher(bucket, "r")
    first.publish(model().items())
    with pytest.raises(FencedError, match="being written by another publisher"):
        second.publish(model().items())


def test_a_version_that_the_pointer_does_not_name_yet_is_whole() -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    publisher.publish(weights.items())
    pointer = bucket.stored[layout.pointer("r")]
    nudge(weights, 1)
    publisher.publish(weights.items())
    bucket.stored[layout.pointer("r")] = pointer  # as after a crash just before it was moved
    taken_over = Publisher(bucket, "r")
    assert same(received(bucket), weights)
    assert taken_over.adopt(weights.items()) is not None
    assert taken_over.publish(weights.items()).version == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100])
def test_a_damaged_pointer_is_replaced(content: bytes) -> None:
    bucket = MemoryBucket()
    publisher, weights = Publisher(bucket, "r"), model()
    for _ in range(3):
        publisher.publish(weights.items())
        bucket.stored[layout.pointer("r")] = content
        nudge(weights, 1)
    taken_over = Publisher(bucket, "r")
    with pytest.raises(FencedError):
        publisher.publish(weights.items())
    assert taken_over.publish(weights.items()).version == 3
    assert same(received(bucket), weights)


def test_the_pointer_tells_the_epoch_of_whoever_may_write() -> None:
    bucket = MemoryBucket()
    Publisher(bucket, "r").publish(model().items())
    for epoch in (2, 3):
        Publisher(bucket, "r")
        assert json.loads(bucket.stored[layout.pointer("r")])["writer_epoch"] == epoch
    assert RunReader(bucket, "r").newest().writer_epoch == 1
