"""One writer per run: on this host by a lock; and what a crash leaves is taken over, or removed."""

import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import xxhash
from filelock import FileLock, Timeout

from shared import layout
from shared.bucket import open_bucket
from shared.errors import BucketError, FencedError, SyncError
from shared.follower import Follower
from shared.reader import RunReader
from shared.types import Base
from tests.conftest import ROOT
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import copies, model, nudge, same
from tests.trainer_box.publishing import received
from trainer_box.publisher import Publisher
from trainer_box.writer import Writer

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


def test_a_pointer_whose_manifest_is_lost_goes_back_to_what_can_be_read_and_its_number_is_spent() -> None:
    bucket, weights, held = MemoryBucket(), model(), dict[str, torch.Tensor]()
    reader = Follower(bucket, "r")
    with Publisher(bucket, "r") as publisher:
        for seed in range(3):
            nudge(weights, seed)
            publisher.publish(weights.items())
            before = held and copies(held)
            reader.catch_up(held)
    for lost in (layout.manifest("r", 2), layout.delta("r", 2)):
        del bucket.stored[lost]
    taken_over = Publisher(bucket, "r")
    assert RunReader(bucket, "r").newest().version == 1
    assert same(received(bucket), before)
    nudge(weights, 4)
    assert taken_over.publish(weights.items()).version == 3
    assert same(received(bucket), weights)
    reader.catch_up(held)
    assert same(held, weights)


def test_a_version_that_is_not_listed_yet_is_found_by_the_pointer() -> None:
    bucket = MemoryBucket()
    newest = Publisher(bucket, "r").publish(model().items())
    listed = bucket.files
    bucket.files = lambda folder: [path for path in listed(folder) if "000000" not in path]  # type: ignore[method-assign]
    taken_over = Publisher(bucket, "r")
    assert RunReader(bucket, "r").newest() == newest
    assert taken_over.adopt(model().items()) == newest
    assert taken_over.next_version == 1


def test_opening_a_run_lists_each_folder_and_reads_each_file_once() -> None:
    bucket = MemoryBucket()
    Publisher(bucket, "r").publish(model().items())
    bucket.calls.clear()
    Publisher(bucket, "r")
    assert sorted(bucket.calls) == [
        "list r/anchors",
        "list r/deltas",
        "list r/manifests",
        "read r/latest.json",
        "read r/manifests/000000.json",
        "read r/run.json",
        "write r/latest.json",
    ]


def test_the_pointer_has_the_hash_of_a_manifest_that_another_program_wrote() -> None:
    bucket = MemoryBucket()
    Publisher(bucket, "r").publish(model().items())
    bucket.edit(layout.manifest("r", 0), remark="written by another program")
    found = xxhash.xxh3_128_hexdigest(bucket.stored[layout.manifest("r", 0)])
    bucket.edit(layout.pointer("r"), manifest_xxh3=found)
    Publisher(bucket, "r")
    assert RunReader(bucket, "r").newest().version == 0


@dataclass
class LockedBucket(MemoryBucket):
    """Has a lock, and records whether it is held when what was left is removed."""

    lock: Path = Path()
    held: list[bool] = field(default_factory=list)

    def lock_file(self, run_id: str) -> Path:  # type: ignore[override]
        return self.lock / f"{run_id}.lock"

    def tidy(self, run_id: str) -> None:
        self.calls.append(f"tidy {run_id}")
        try:
            FileLock(self.lock_file(run_id), timeout=0).acquire()
            self.held.append(False)
        except Timeout:
            self.held.append(True)


def test_what_a_killed_writer_left_in_the_bucket_is_removed_first_and_under_the_lock(tmp_path: Path) -> None:
    bucket = LockedBucket(lock=tmp_path)
    with Publisher(bucket, "r"):
        assert (bucket.calls[0], bucket.held) == ("tidy r", [True])
        with pytest.raises(BucketError, match="written already"):
            Publisher(bucket, "r")
    assert bucket.held == [True]


def test_what_a_killed_writer_left_on_the_disk_is_removed_and_what_others_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bucket, base = LockedBucket(lock=tmp_path), Base()
    for run_id, stays in (("r", False), ("another", True)):
        writer = Writer(bucket, run_id, "", base)
        with writer.folder() as folder:
            left = Path(shutil.copytree(folder, f"{folder}9"))  # as when the end of this block is never reached
        (left / "delta.safetensors").write_bytes(b"0")
        writer.close()
        Writer(bucket, "r", "", base).close()
        assert left.exists() == stays
