import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub.errors import BucketBatchError, EntryNotFoundError, HfHubHTTPError

from shared.bucket import open_bucket
from shared.bucket.calls import BucketClient
from shared.bucket.hub import HubBucket, xet_hash
from shared.bucket.retries import Limits
from shared.errors import BucketError, MissingFileError

TOKEN = "hf_secret_token_0123456789"
QUICK = Limits(listing=0.02, attempts=2, first_wait=0.001, longest_wait=0.01)


@dataclass(frozen=True)
class Item:
    type: str
    path: str
    size: int
    xet_hash: str


class RecordingClient:
    """What HubBucket uses of huggingface_hub, in memory. `spoil` changes what is stored; None stores nothing."""

    def __init__(self, spoil: Callable[[bytes], bytes | None] = lambda content: content) -> None:
        self.calls: list[str] = []
        self.stored: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.arriving: Callable[[bytes], bytes] = lambda content: content
        self._spoil = spoil

    def _record(self, call: str) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error

    def batch_bucket_files(
        self,
        bucket_id: str,
        *,
        add: list[tuple[str | Path | bytes, str]] | None = None,
        delete: list[str] | None = None,
    ) -> None:
        for path in delete or []:
            self._record(f"delete {path}")
            del self.stored[path]
        for source, path in add or []:
            assert isinstance(source, str), "large content is uploaded from a file"
            self._record(f"add {path}")
            content = self._spoil(Path(source).read_bytes())
            if content is not None:
                self.stored[path] = content

    def download_bucket_files(
        self, bucket_id: str, files: list[tuple[Any, str | Path]], *, raise_on_missing_files: bool = False
    ) -> None:
        for item, target in files:
            Path(target).write_bytes(self.stored[item.path][:3])
            self._record(f"get {item.path}")
            Path(target).write_bytes(self.arriving(self.stored[item.path]))

    def get_bucket_paths_info(self, bucket_id: str, paths: Iterable[str]) -> Iterator[Item]:
        for path in paths:
            self._record(f"info {path}")
            if path in self.stored:
                yield Item("file", path, len(self.stored[path]), hashed(self.stored[path]))

    def list_bucket_tree(
        self, bucket_id: str, prefix: str | None = None, *, recursive: bool | None = None
    ) -> Iterator[Item]:
        """Recursive unless told otherwise, as the Hub has it."""
        self._record(f"list {prefix}")
        folders = set()
        for path, content in self.stored.items():
            below = path.removeprefix(prefix or "")
            if path.startswith(prefix or "") and (recursive is not False or "/" not in below):
                yield Item("file", path, len(content), hashed(content))
            elif path.startswith(prefix or ""):
                folders.add((prefix or "") + below.split("/")[0])
        yield from (Item("directory", folder, 0, "") for folder in folders)


def hashed(content: bytes) -> str:
    return f"hash of {content!r}"


def bucket_of(client: BucketClient) -> HubBucket:
    return HubBucket("user/name", client, lambda path: hashed(path.read_bytes()), QUICK)


def http_error(status: int, kind: type[HfHubHTTPError] = HfHubHTTPError) -> HfHubHTTPError:
    request = httpx2.Request("POST", "https://hub.test/api", headers={"authorization": f"Bearer {TOKEN}"})
    response = httpx2.Response(status, request=request, headers={"x-request-id": "1"})
    return kind(f"{status} Client Error for {TOKEN}", response=response, server_message=TOKEN)


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
        assert TOKEN not in str(caught.value)
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
    client.error = EntryNotFoundError("no such path")
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
