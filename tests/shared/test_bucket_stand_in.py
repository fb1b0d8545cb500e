"""HubBucket with the real huggingface_hub and hf_xet clients, against a stand-in for the Hub."""

import filecmp
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import stamina
from huggingface_hub.utils._xet import abort_xet_session
from stamina.instrumentation import RetryDetails

from shared.bucket import open_bucket
from shared.bucket.client import connect
from shared.bucket.hub import HubBucket
from shared.errors import BucketError, MissingFileError
from tests.conftest import RunningProcess, StartProcess
from tests.hub import Kind, StandIn, stand_in
from tests.shared.hub_calls import (
    HASTY,
    MB,
    NAME,
    OLD,
    QUICK,
    TOKEN,
    bucket_at,
    download,
    files_in,
    replace_pointer,
    write,
)


@pytest.mark.parametrize("size", [0, 1, 70_000, 20 * MB])
def test_what_is_uploaded_is_downloaded(hub: StandIn, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "source").write_bytes(content)
    bucket_at(hub).write("r/a b/%/c", tmp_path / "source")
    bucket_at(hub).download("r/a b/%/c", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == content
    assert bucket_at(hub).read("r/a b/%/c") == content
    assert files_in(tmp_path) == ["source", "target"]


def test_many_small_files_are_read_at_once(hub: StandIn, tmp_path: Path) -> None:
    files = {f"r/many/{number}": os.urandom(number) for number in range(20)}
    for path, content in files.items():
        bucket_at(hub).write(path, content)
    assert bucket_at(hub).read_all([*files, "r/none"]) == files
    assert files_in(tmp_path) == []


def test_content_that_compresses_and_repeats_comes_back_whole(hub: StandIn) -> None:
    content = OLD[:MB] + b"text " * 400_000 + OLD[:MB] + b"text " * 400_000
    bucket_at(hub).write("r/a", content)
    assert bucket_at(hub).read("r/a") == content


def test_an_opened_bucket_asks_the_endpoint_of_the_environment(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert open_bucket(NAME, TOKEN).read("r/old") == OLD
    assert open_bucket(NAME).read("r/old") == OLD


def test_files_and_folders_are_listed_page_by_page(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hub.app.PAGE", 2)
    bucket = bucket_at(hub)
    for path in ("r/m/3", "r/m/2", "r/m/1", "r/m/deeper/4", "r/mm/5", "s/6", "t/7", "top"):
        bucket.write(path, path.encode())
    assert bucket.files("r/m") == ["r/m/1", "r/m/2", "r/m/3"]
    assert bucket.files("absent") == []
    assert bucket.folders() == ["r", "s", "t"]


def test_a_file_is_written_once_and_a_pointer_is_replaced(hub: StandIn) -> None:
    bucket = bucket_at(hub)
    with pytest.raises(BucketError, match="r/old is already in bucket user/name"):
        bucket.write("r/old", OLD)
    bucket.write("r/latest.json", b"one", replace=True)
    bucket.write("r/latest.json", b"two", replace=True)
    assert bucket.read("r/latest.json") == b"two"
    assert bucket.read("r/old") == OLD


def test_files_are_deleted_and_those_that_are_not_there_are_no_error(hub: StandIn) -> None:
    bucket = bucket_at(hub)
    bucket.write("r/kept", b"kept")
    for _ in range(2):
        bucket.delete(["r/old", "r/absent"])
        assert bucket.files("r") == ["r/kept"]
    bucket.delete([])
    bucket.write("r/old", b"new")
    assert bucket.read("r/old") == b"new"


def test_a_file_that_is_not_there_is_said_to_be_missing_at_once(hub: StandIn, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="r/absent is not in bucket user/name"):
        bucket_at(hub).download("r/absent", tmp_path / "target")
    assert hub.count("info") == 1


def test_a_bucket_that_is_not_there_is_no_missing_file(hub: StandIn, tmp_path: Path) -> None:
    other = HubBucket("user/other", connect(TOKEN), limits=QUICK)
    for call in (write, download, lambda bucket, folder: bucket.files("r"), lambda bucket, folder: bucket.folders()):
        with pytest.raises(BucketError, match="bucket user/other: HTTP 404: there is no such bucket") as caught:
            call(other, tmp_path)
        assert not isinstance(caught.value, MissingFileError)
    assert (hub.count("info"), hub.count("tree")) == (2, 2)


def test_a_wrong_token_is_a_sentence_without_it(hub: StandIn, tmp_path: Path) -> None:
    for call in (write, replace_pointer, download):
        with pytest.raises(BucketError, match="HTTP 401: the token is missing or not valid; set HF_TOKEN") as caught:
            call(bucket_at(hub, token="hf_wrong"), tmp_path)
        assert "hf_wrong" not in str(caught.value)


def test_a_hub_that_asks_to_wait_is_left_alone_for_so_long(hub: StandIn, tmp_path: Path) -> None:
    waits: list[float] = []

    def record(details: RetryDetails) -> None:
        waits.append(details.wait_for)

    stamina.instrumentation.set_on_retry_hooks([record])
    try:
        hub.inject("status", "info", status=429, retry_after=1)
        download(bucket_at(hub), tmp_path)
    finally:
        stamina.instrumentation.set_on_retry_hooks(None)
    assert waits == [1.0]


def test_a_hub_that_asks_to_wait_too_long_is_not_waited_for(hub: StandIn, tmp_path: Path) -> None:
    hub.inject("status", "info", status=429, retry_after=300, times=0)
    with pytest.raises(BucketError, match="HTTP 429: too many requests; try again later, in 300 s"):
        download(bucket_at(hub), tmp_path)
    assert hub.count("info") == 1


def test_a_hub_that_nobody_answers_for_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stand_in() as gone:
        pass
    monkeypatch.setenv("HF_ENDPOINT", gone.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for call in (write, download):
        with pytest.raises(BucketError, match=r"in bucket user/name: .*refused \(3 attempts\)"):
            call(bucket_at(gone), tmp_path)


def test_a_process_that_may_not_go_online_is_told_why(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BucketError, match="HF_HUB_OFFLINE is set; unset it"):
        bucket_at(hub).files("r")
    assert hub.count("tree") == 0


def test_an_upload_that_was_given_up_does_not_take_effect_later(hub: StandIn, tmp_path: Path) -> None:
    hub.inject("stall", "xorb-upload", seconds=1)
    with pytest.raises(BucketError, match="its 0.0 MB have not gone through within 0.3 s"):
        replace_pointer(bucket_at(hub, HASTY), tmp_path)
    assert hub.count("batch") == 0
    assert bucket_at(hub).files("r") == ["r/old"]


def test_a_slow_transfer_has_the_time_that_its_size_takes(hub: StandIn, tmp_path: Path) -> None:
    hub.inject("slow", "xorb", rate=5 * MB, times=0)
    bucket_at(hub, replace(QUICK, transfer=0.3, bytes_per_second=0.3 * MB)).download("r/old", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == OLD
    with pytest.raises(BucketError, match="its 3.0 MB have not gone through within 0.3 s"):
        bucket_at(hub, replace(HASTY, bytes_per_second=60 * MB)).download("r/old", tmp_path / "other")
    assert files_in(tmp_path) == ["target"]


@pytest.mark.parametrize("kind", ["truncate", "damage"])
def test_a_download_that_brings_other_bytes_is_never_at_its_target(hub: StandIn, tmp_path: Path, kind: Kind) -> None:
    hub.inject(kind, "xorb", times=0)
    with pytest.raises(BucketError, match="cannot read r/old in bucket user/name: .* \\(3 attempts\\)"):
        bucket_at(hub).download("r/old", tmp_path / "target")
    assert files_in(tmp_path) == []


def test_an_upload_whose_answer_was_lost_is_looked_up_and_not_repeated(hub: StandIn) -> None:
    hub.inject("drop", "batch")
    bucket_at(hub).write("r/a", b"content")
    assert (hub.count("batch"), hub.count("xorb-upload")) == (1, 1)
    hub.inject("drop", "batch")
    bucket_at(hub).write("r/latest.json", b"content", replace=True)
    assert hub.count("batch") == 2
    assert bucket_at(hub).files("r") == ["r/a", "r/latest.json", "r/old"]


def test_a_batch_that_lists_the_file_as_failed_is_tried_again_and_then_an_error(hub: StandIn) -> None:
    hub.inject("refuse", "batch", path="r/a", times=2)
    bucket_at(hub).write("r/a", b"content")
    assert bucket_at(hub).read("r/a") == b"content"
    hub.inject("refuse", "batch", path="r/b", times=0)
    with pytest.raises(BucketError, match="cannot write r/b .*: the Hub could not do it: the stand-in was told to"):
        bucket_at(hub).write("r/b", b"content")
    with pytest.raises(MissingFileError):
        bucket_at(hub).read("r/b")


def test_a_file_that_the_hub_only_says_it_stored_is_uploaded_again(hub: StandIn) -> None:
    hub.inject("lose", "batch")
    bucket_at(hub).write("r/a", b"content")
    assert hub.count("batch") == 2
    hub.inject("lose", "batch", path="latest", times=0)
    with pytest.raises(BucketError, match="cannot write r/latest.json .*: it reads back as None"):
        replace_pointer(bucket_at(hub), Path())


def test_a_file_that_is_listed_late_is_waited_for(hub: StandIn) -> None:
    hub.inject("list late", "batch", seconds=0.1)
    bucket_at(hub, replace(QUICK, listing=20.0)).write("r/a", b"content")
    assert hub.count("batch") == 1
    assert bucket_at(hub).read("r/a") == b"content"


def test_a_replaced_file_whose_old_content_is_listed_for_a_while_is_waited_for(hub: StandIn) -> None:
    bucket_at(hub).write("r/latest.json", b"one", replace=True)
    hub.inject("list late", "batch", seconds=0.1)
    bucket_at(hub, replace(QUICK, listing=20.0)).write("r/latest.json", b"two", replace=True)
    assert bucket_at(hub).read("r/latest.json") == b"two"
    hub.inject("list late", "batch", seconds=600, times=0)
    with pytest.raises(BucketError, match="it reads back as Content.* was uploaded"):
        bucket_at(hub).write("r/latest.json", b"three", replace=True)
    assert bucket_at(hub).read("r/latest.json") == b"two"


def test_a_file_that_is_listed_before_its_bytes_is_no_missing_file(hub: StandIn, tmp_path: Path) -> None:
    hub.inject("bytes late", "batch", seconds=600)
    bucket_at(hub).write("r/a", b"content")
    with pytest.raises(BucketError, match="cannot read r/a .*: it is listed, but its bytes are not there") as caught:
        bucket_at(hub).download("r/a", tmp_path / "target")
    assert not isinstance(caught.value, MissingFileError)
    assert files_in(tmp_path) == []
    hub.inject("status", "resolve", status=404)
    hub.inject("status", "reconstruction", status=404)
    download(bucket_at(hub), tmp_path)


def test_a_file_that_is_lost_is_missing(hub: StandIn, tmp_path: Path) -> None:
    hub.remove(NAME, "r/old")
    with pytest.raises(MissingFileError):
        download(bucket_at(hub), tmp_path)


def test_a_delete_whose_answer_was_lost_or_that_failed_is_looked_up(hub: StandIn) -> None:
    hub.inject("drop", "batch")
    bucket_at(hub).delete(["r/old"])
    assert hub.count("batch") == 1
    bucket_at(hub).write("r/old", OLD)
    hub.inject("refuse", "batch", times=0)
    with pytest.raises(BucketError, match="cannot delete r/old in bucket user/name: the Hub could not do it"):
        bucket_at(hub).delete(["r/old"])
    assert bucket_at(hub).files("r") == ["r/old"]


def test_a_transfer_that_another_ones_deadline_broke_is_made_again(hub: StandIn, tmp_path: Path) -> None:
    hub.inject("stall", "xorb-upload", seconds=600, times=0)
    hub.inject("slow", "xorb", rate=4 * MB, times=0)
    patient = replace(QUICK, attempts=10)

    def get(number: int) -> bytes:
        bucket_at(hub, patient).download("r/old", tmp_path / f"target-{number}")
        return (tmp_path / f"target-{number}").read_bytes()

    with ThreadPoolExecutor(4) as pool:
        downloads = [pool.submit(get, number) for number in range(3)]
        for _ in range(2):
            with pytest.raises(BucketError, match="within 0.3 s"):
                write(bucket_at(hub, HASTY), tmp_path)
        assert [result.result() == OLD for result in downloads] == [True] * 3
    assert files_in(tmp_path) == ["target-0", "target-1", "target-2"]


def test_readers_of_a_pointer_see_one_whole_content_or_another_while_it_is_replaced(hub: StandIn) -> None:
    contents = [bytes([number]) * (1 + 3000 * number) for number in range(6)]
    bucket_at(hub).write("r/latest.json", contents[0], replace=True)
    done = threading.Event()

    def read() -> set[bytes]:
        seen = set()
        while not done.is_set():
            seen.add(bucket_at(hub).read("r/latest.json"))
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for content in contents[1:]:
                bucket_at(hub).write("r/latest.json", content, replace=True)
        finally:
            done.set()
        assert all(reader.result() <= set(contents) for reader in readers)


def test_other_users_of_the_hub_in_this_process_keep_its_clients_ways(hub: StandIn) -> None:
    hub.inject("status", "info", status=503)
    (item,) = connect(TOKEN).get_bucket_paths_info(NAME, ["r/old"])
    assert item.size == len(OLD)
    assert hub.count("info") == 2


@pytest.fixture
def hub_process(
    process: StartProcess, free_port: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], RunningProcess]]:
    """Starts a stand-in as a process, always on the same port and folder. The clients here take it for the Hub."""
    port = free_port()
    url, folder = f"http://127.0.0.1:{port}", tmp_path / "hub"
    for name, value in StandIn(url).environment(tmp_path / "xet").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    command = [sys.executable, "-m", "tests.hub", f"--port={port}", f"--folder={folder}"]
    abort_xet_session()
    yield lambda: process(command, env={"HF_TOKEN": TOKEN}, url=f"{url}/health")
    abort_xet_session()


@pytest.mark.slow
def test_a_stand_in_that_was_killed_goes_on_with_its_files(hub_process: Callable[[], RunningProcess]) -> None:
    first, bucket = hub_process(), HubBucket(NAME, connect(TOKEN), limits=QUICK)
    bucket.write("r/old", OLD)
    first.process.kill()
    first.wait(10)
    with pytest.raises(BucketError, match="refused"):
        bucket.files("r")
    hub_process()
    assert bucket.files("r") == ["r/old"]
    assert bucket.read("r/old") == OLD


@pytest.mark.slow
def test_a_large_file_does_not_go_through_anybodys_memory(
    hub_process: Callable[[], RunningProcess], tmp_path: Path
) -> None:
    with (tmp_path / "large").open("wb") as file:
        for _ in range(200):
            file.write(os.urandom(MB))
    processes = [psutil.Process(hub_process().process.pid), psutil.Process()]
    bucket = HubBucket(NAME, connect(TOKEN))
    before = [process.memory_info().rss for process in processes]
    bucket.write("r/large", tmp_path / "large")
    bucket.download("r/large", tmp_path / "target")
    grown = [process.memory_info().rss - rss for process, rss in zip(processes, before, strict=True)]
    assert filecmp.cmp(tmp_path / "large", tmp_path / "target", shallow=False)
    assert max(grown) < 100 * MB
