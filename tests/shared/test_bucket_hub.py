import errno
import os
import stat
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx2
import pytest
from huggingface_hub.errors import BucketBatchError, HfHubHTTPError

from shared.bucket import open_bucket
from shared.bucket.hub import HubBucket, xet_hash
from shared.errors import BucketError, MissingFileError
from tests.shared.recording_client import QUICK, Item, RecordingClient, bucket_of

TOKEN = "hf_secret_token_0123456789"


def http_error(status: int, kind: type[HfHubHTTPError] = HfHubHTTPError) -> HfHubHTTPError:
    request = httpx2.Request("POST", "https://hub.test/api", headers={"authorization": f"Bearer {TOKEN}"})
    response = httpx2.Response(status, request=request, headers={"x-request-id": "1"})
    return kind(f"{status} Client Error for {TOKEN}", response=response, server_message=TOKEN)


class CountingClient(RecordingClient):
    """Of how many paths each call asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for: list[int] = []

    def get_bucket_paths_info(self, bucket_id: str, paths: Iterable[str]) -> Iterator[Item]:
        self.asked_for.append(len(list(paths)))
        return super().get_bucket_paths_info(bucket_id, paths)


def test_an_upload_is_compared_with_what_the_hub_lists() -> None:
    client = RecordingClient()
    bucket_of(client).write("r/a", b"content")
    assert client.calls == ["info r/a", "add r/a", "info r/a"]
    assert client.stored == {"r/a": b"content"}


def test_a_large_file_is_uploaded_from_where_it_lies(tmp_path: Path) -> None:
    client = RecordingClient()
    (tmp_path / "file").write_bytes(b"content")
    bucket_of(client).write("r/a", tmp_path / "file")
    assert client.stored == {"r/a": b"content"}


def test_a_replaced_file_need_not_be_looked_for_first() -> None:
    client = RecordingClient()
    bucket_of(client).write("r/latest.json", b"one", replace=True)
    bucket_of(client).write("r/latest.json", b"two", replace=True)
    assert client.calls == ["add r/latest.json", "info r/latest.json"] * 2
    assert bucket_of(client).read("r/latest.json") == b"two"


def test_many_files_are_read_in_batches_without_those_that_are_not_there() -> None:
    client = CountingClient()
    client.stored = {f"r/{number}": b"content" for number in range(501)}
    found = bucket_of(client).read_all([*client.stored, "r/none"])
    assert found == client.stored
    assert client.asked_for == [500, 2]


def test_a_batch_with_a_file_of_which_a_part_arrives_is_an_error() -> None:
    client = RecordingClient()
    client.stored = {"r/a": b"content", "r/b": b"content"}
    client.arriving = lambda content: content[:-1]
    with pytest.raises(BucketError, match="cannot read r/a and 1 more in bucket user/name"):
        bucket_of(client).read_all(["r/a", "r/b"])


def test_of_files_that_are_read_again_only_those_that_have_changed_are_fetched() -> None:
    client = RecordingClient()
    client.stored = {"r/latest.json": b"one", "r/empty": b"", "r/a": b"a"}
    bucket = bucket_of(client)
    for content in (b"one", b"one", b"two"):
        client.stored["r/latest.json"] = content
        assert bucket.read_all([*client.stored]) == client.stored
    assert [call for call in client.calls if call.startswith("get")] == [
        "get r/latest.json",
        "get r/empty",
        "get r/a",
        "get r/latest.json",
    ]


def test_a_file_is_written_once() -> None:
    client = RecordingClient()
    bucket_of(client).write("r/a", b"one")
    with pytest.raises(BucketError, match="already in bucket user/name"):
        bucket_of(client).write("r/a", b"two")
    assert client.stored == {"r/a": b"one"}


@pytest.mark.parametrize(
    "spoil",
    [lambda content: None, lambda content: content[:-1], lambda content: b"CONTENT", lambda content: b""],
)
def test_a_batch_that_only_says_it_stored_the_file_is_an_error(spoil: Callable[[bytes], bytes | None]) -> None:
    with pytest.raises(BucketError, match="cannot write r/a in bucket user/name: it reads back as .* was uploaded"):
        bucket_of(RecordingClient(spoil)).write("r/a", b"content", replace=True)


def test_an_upload_is_not_repeated_over_what_somebody_else_wrote_meanwhile() -> None:
    client = RecordingClient(lambda content: b"of somebody else")
    with pytest.raises(BucketError, match="r/a is already in bucket user/name with other content, and files there"):
        bucket_of(client).write("r/a", b"content")
    assert client.calls.count("add r/a") == 1


@pytest.mark.parametrize("arriving", [lambda content: content[:-1], lambda content: b"CONTENT", lambda content: b""])
def test_a_download_that_brings_something_else_is_an_error(arriving: Callable[[bytes], bytes], tmp_path: Path) -> None:
    client = RecordingClient()
    client.stored["r/a"] = b"content"
    client.arriving = arriving
    with pytest.raises(BucketError, match="cannot read r/a in bucket user/name: .* has arrived, .* is listed"):
        bucket_of(client).download("r/a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    assert client.calls.count("get r/a") == QUICK.attempts


def test_only_files_that_are_there_are_deleted() -> None:
    client = RecordingClient()
    client.stored = dict.fromkeys(["r/a", "r/b", "r/c"], b"")
    bucket_of(client).delete(["r/a", "r/absent", "r/c"])
    bucket_of(client).delete(["r/a"])
    assert list(client.stored) == ["r/b"]
    assert [call for call in client.calls if call.startswith("delete")] == ["delete r/a", "delete r/c"]


def test_a_run_has_one_lock_file_per_bucket_in_a_folder_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lock = bucket_of(RecordingClient()).lock_file("r")
    assert lock == bucket_of(RecordingClient()).lock_file("r")
    assert lock != bucket_of(RecordingClient()).lock_file("s")
    assert lock != HubBucket("user/other", RecordingClient()).lock_file("r")
    assert lock.parent.parent == tmp_path
    assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o700


def test_a_lock_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lock = bucket_of(RecordingClient()).lock_file("r")
    monkeypatch.setattr("os.getuid", lambda: 12345)
    lock.parent.rename(tmp_path / "async-rl-spaces-12345")
    with pytest.raises(BucketError, match="belongs to another user; set TMPDIR"):
        bucket_of(RecordingClient()).lock_file("r")


def test_a_killed_upload_left_nothing_that_would_be_tidied() -> None:
    client = RecordingClient()
    client.stored["r/a"] = b"content"
    bucket_of(client).tidy("r")
    assert client.calls == []
    assert client.stored == {"r/a": b"content"}


def test_a_disk_that_takes_no_temporary_file_is_told_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(place: str, *arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)

    client = RecordingClient()
    client.stored["r/a"] = b"content"
    bucket = bucket_of(client)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.mkdir", fail)
    calls: list[Callable[[], object]] = [
        lambda: bucket.read("r/a"),
        lambda: bucket.write("r/b", b"x"),
        lambda: bucket.lock_file("r"),
    ]
    for call in calls:
        with pytest.raises(
            BucketError, match=f"cannot .*: No space left on device: {tmp_path}.* set TMPDIR to another"
        ):
            call()
    assert "add r/b" not in client.calls


def test_without_any_folder_for_temporary_files_each_call_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._get_default_tempdir", lambda: open("/absent/folder"))
    bucket = bucket_of(RecordingClient())
    calls: list[Callable[[], object]] = [lambda: bucket.read("r/a"), lambda: bucket.lock_file("r")]
    for call in calls:
        with pytest.raises(BucketError, match="/absent/folder .this machine.; make room there, or set TMPDIR"):
            call()


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    bucket = bucket_of(RecordingClient())
    with pytest.raises(MissingFileError, match="r/a is not in bucket user/name"):
        bucket.read("r/a")
    with pytest.raises(MissingFileError, match="r/a is not in bucket user/name"):
        bucket.download("r/a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "set HF_TOKEN"),
        (402, "plan"),
        (403, "needs access"),
        (404, "no such bucket"),
        (429, "try again later"),
        (503, "try again later"),
    ],
)
def test_each_refusal_has_its_sentence_and_is_not_a_missing_file(status: int, remedy: str, tmp_path: Path) -> None:
    client = RecordingClient()
    bucket = bucket_of(client)
    bucket.write("r/a", b"content")
    client.error = http_error(status)
    calls: list[Callable[[], object]] = [
        lambda: bucket.write("r/b", b"x"),
        lambda: bucket.read("r/a"),
        lambda: bucket.download("r/a", tmp_path / "a"),
        lambda: bucket.files("r"),
        lambda: bucket.folders(),
    ]
    for call in calls:
        with pytest.raises(BucketError, match=f"bucket user/name: HTTP {status}: .*{remedy}") as caught:
            call()
        assert TOKEN not in "".join(traceback.format_exception(caught.value))
        assert not isinstance(caught.value, MissingFileError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        http_error(422, BucketBatchError),
        httpx2.ConnectError("connection refused"),
        httpx2.ReadTimeout("timed out"),
        ConnectionError("offline"),
        PermissionError("xet said no"),
        RuntimeError("xet: network error"),
    ],
)
def test_an_unreachable_hub_is_a_bucket_error(error: Exception, tmp_path: Path) -> None:
    client = RecordingClient()
    client.stored["r/a"] = b"content"
    client.error = error
    with pytest.raises(BucketError, match="cannot write r/b"):
        bucket_of(client).write("r/b", b"x", replace=True)
    with pytest.raises(BucketError, match="cannot read r/a"):
        bucket_of(client).download("r/a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_download_is_whole(tmp_path: Path) -> None:
    client = RecordingClient()
    client.stored["r/a"] = b"content"
    bucket_of(client).download("r/a", tmp_path / "a")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"content")]


def test_files_and_folders_are_listed() -> None:
    client = RecordingClient()
    client.stored = dict.fromkeys(["r/m/2", "r/m/1", "r/m/deeper/3", "r/mm/4", "s/x", "top"], b"")
    bucket = bucket_of(client)
    assert bucket.files("r/m") == ["r/m/1", "r/m/2"]
    assert bucket.files("absent") == []
    assert bucket.folders() == ["r", "s"]


def test_a_folder_that_the_hub_says_is_not_there_has_no_files() -> None:
    client = RecordingClient()
    client.error = http_error(404)
    client.error.response.headers["X-Error-Code"] = "EntryNotFound"
    assert bucket_of(client).files("absent") == []


def test_the_hash_is_that_of_the_xet_library(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"content" * 1000)
    (tmp_path / "same").write_bytes(b"content" * 1000)
    (tmp_path / "other").write_bytes(b"content" * 999)
    one = xet_hash(tmp_path / "one")
    assert len(one) == 64
    assert int(one, 16) > 0
    assert xet_hash(tmp_path / "same") == one
    assert xet_hash(tmp_path / "other") != one


def test_a_bucket_on_the_hub_is_opened_without_a_call_and_hides_the_token() -> None:
    bucket = open_bucket("user/name", TOKEN)
    assert isinstance(bucket, HubBucket)
    assert bucket.name == "user/name"
    assert TOKEN not in repr(bucket)
