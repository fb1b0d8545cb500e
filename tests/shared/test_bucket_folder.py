import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.bucket import Bucket, open_bucket
from shared.errors import BucketError, MissingFileError


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(f"local:{tmp_path}/bucket")


def everything(tmp_path: Path) -> list[str]:
    folder = tmp_path / "bucket"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def failing(code: int) -> Callable[..., int]:
    def fail(*arguments: object, **options: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_file_is_read_back(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("r/a.json", b"small")
    (tmp_path / "source").write_bytes(b"large" * 1_000_000)
    bucket.write("r/deltas/b", tmp_path / "source")
    bucket.download("r/deltas/b", tmp_path / "target")
    assert bucket.read("r/a.json") == b"small"
    assert (tmp_path / "target").read_bytes() == b"large" * 1_000_000
    assert everything(tmp_path) == ["r/a.json", "r/deltas/b"]


def test_many_files_are_read_at_once_without_those_that_are_not_there(bucket: Bucket) -> None:
    for name in ("r/a", "r/b"):
        bucket.write(name, name.encode())
    assert bucket.read_all(["r/a", "r/none", "r/b"]) == {"r/a": b"r/a", "r/b": b"r/b"}
    assert bucket.read_all([]) == {}


def test_a_file_is_written_once(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("r/a", b"one")
    with pytest.raises(BucketError, match="r/a is already in bucket"):
        bucket.write("r/a", b"two")
    assert bucket.read("r/a") == b"one"
    assert everything(tmp_path) == ["r/a"]


def test_two_writers_of_one_file_at_once_do_not_overwrite_each_other(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("r/a", b"one")
    monkeypatch.setattr(Path, "exists", lambda path: False)  # as seen by the writer that looked first
    with pytest.raises(BucketError, match="r/a"):
        bucket.write("r/a", b"two")
    assert bucket.read("r/a") == b"one"


def test_a_pointer_is_replaced_when_told(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("r/latest.json", b"one", replace=True)
    bucket.write("r/latest.json", b"two", replace=True)
    assert bucket.read("r/latest.json") == b"two"
    assert everything(tmp_path) == ["r/latest.json"]


def test_files_and_folders_are_listed_without_what_is_hidden_or_deeper(bucket: Bucket, tmp_path: Path) -> None:
    for path in ("r/m/2", "r/m/1", "r/m/deeper/3", "s/x", "top"):
        bucket.write(path, b"")
    (tmp_path / "bucket/r/m/.leftover").write_bytes(b"half")
    (tmp_path / "bucket/.hidden").mkdir()
    assert bucket.files("r/m") == ["r/m/1", "r/m/2"]
    assert bucket.folders() == ["r", "s"]
    assert bucket.files("r/absent") == []
    assert bucket.files("top") == []


@pytest.mark.parametrize("path", ["r/absent", "absent/a", "r", "r/a/deeper"])
def test_a_missing_file_is_said_to_be_missing(bucket: Bucket, tmp_path: Path, path: str) -> None:
    bucket.write("r/a", b"one")
    with pytest.raises(MissingFileError, match=f"{path} is not in bucket"):
        bucket.read(path)
    with pytest.raises(MissingFileError, match=f"{path} is not in bucket"):
        bucket.download(path, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "../a", "r/../../a", "r/..", "r/\0a"])
def test_a_path_out_of_the_bucket_is_refused(bucket: Bucket, tmp_path: Path, path: str) -> None:
    (tmp_path / "a").write_bytes(b"outside")
    for call in (bucket.read, bucket.files, lambda path: bucket.write(path, b"x", replace=True)):
        with pytest.raises(BucketError, match="not a path inside"):
            call(path)
    assert (tmp_path / "a").read_bytes() == b"outside"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_failed_write_is_a_sentence_and_leaves_nothing(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    monkeypatch.setattr(os, call, failing(code))
    remedy = {errno.ENOSPC: "free some", errno.EACCES: "may write", errno.EROFS: "may write"}.get(code, "error")
    with pytest.raises(BucketError, match=f"cannot write r/a in bucket local:.*{remedy}"):
        bucket.write("r/a", b"one", replace=call == "replace")
    assert everything(tmp_path) == []


def test_an_interrupted_write_leaves_nothing(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bucket.write("r/a", b"one")
    assert everything(tmp_path) == []


def test_a_failed_download_leaves_nothing(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.write("r/a", b"one")
    (tmp_path / "targets").mkdir()
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(BucketError, match="no space left"):
        bucket.download("r/a", tmp_path / "targets/a")
    assert list((tmp_path / "targets").iterdir()) == []


def test_a_download_to_a_folder_that_does_not_exist_is_not_a_missing_file(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("r/a", b"one")
    with pytest.raises(BucketError) as caught:
        bucket.download("r/a", tmp_path / "absent/a")
    assert not isinstance(caught.value, MissingFileError)


def test_a_download_over_a_folder_leaves_nothing_behind(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("r/a", b"one")
    (tmp_path / "targets/a").mkdir(parents=True)
    with pytest.raises(BucketError, match="cannot read r/a"):
        bucket.download("r/a", tmp_path / "targets/a")
    assert [path.name for path in (tmp_path / "targets").iterdir()] == ["a"]


def test_a_file_in_the_place_of_a_folder_is_a_sentence(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("r", b"a file")
    with pytest.raises(BucketError, match="cannot write r/a") as caught:
        bucket.write("r/a", b"one")
    assert "written once" not in str(caught.value)
    (tmp_path / "file").write_bytes(b"")
    for place in ("file", "file/deeper"):
        with pytest.raises(BucketError, match="cannot use the folder in bucket local:"):
            open_bucket(f"local:{tmp_path}/{place}")


def test_a_bucket_whose_folder_is_gone_is_not_an_empty_bucket(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "bucket").rmdir()
    for call in (bucket.read, bucket.files, lambda path: bucket.write(path, b"x")):
        with pytest.raises(BucketError, match="is gone") as caught:
            call("r/a")
        assert not isinstance(caught.value, MissingFileError)
    with pytest.raises(BucketError):
        bucket.folders()


def test_what_reads_back_different_is_refused(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def damage(source: str, target: str) -> None:
        Path(source).write_bytes(b"other")
        link(source, target)

    monkeypatch.setattr(os, "link", damage)
    with pytest.raises(BucketError, match="reads back different"):
        bucket.write("r/a", b"bytes")
    (tmp_path / "source").write_bytes(b"bytes")
    with pytest.raises(BucketError, match="reads back different"):
        bucket.write("r/b", tmp_path / "source")


def test_other_users_may_read_the_files(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("r/a", b"one")
    assert stat.S_IMODE((tmp_path / "bucket/r/a").stat().st_mode) == 0o644


@pytest.mark.parametrize("name", ["", "name", "a/b/c", "a/", "/b", "a b/c", "user/name?x", "user/n\nb", "https://x/y"])
def test_a_name_of_no_bucket_is_refused(name: str) -> None:
    with pytest.raises(BucketError, match="neither 'local:/path' nor 'user/name'"):
        open_bucket(name)


def test_deleted_files_are_gone_and_those_that_are_not_there_are_no_error(bucket: Bucket, tmp_path: Path) -> None:
    for path in ("r/a", "r/deltas/b", "r/kept"):
        bucket.write(path, b"")
    for _ in range(2):
        bucket.delete(["r/a", "r/deltas/b", "r/absent", "absent/c"])
        assert everything(tmp_path) == ["r/kept"]
    bucket.write("r/a", b"again")
    assert bucket.read("r/a") == b"again"


def test_a_delete_out_of_the_bucket_or_of_a_folder_deletes_nothing(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("r/a", b"one")
    (tmp_path / "outside").write_bytes(b"")
    for paths in (["r/a", "../outside"], ["r", "r/a"]):
        with pytest.raises(BucketError):
            bucket.delete(paths)
    assert (tmp_path / "outside").exists()
    assert bucket.read("r/a") == b"one"


def test_deleting_is_durable(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.write("r/a", b"one")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(BucketError, match="cannot delete"):
        bucket.delete(["r/a"])


def test_what_killed_writers_left_in_a_run_is_tidied_and_nothing_else(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("r/anchors/a", b"kept")
    bucket.write("s/a", b"kept")
    (tmp_path / "bucket/.r.lock").touch()
    with monkeypatch.context() as killed:
        killed.setattr(os, "link", failing(errno.EIO))
        killed.setattr(Path, "unlink", lambda path, **options: None)
        for path in ("r/b", "r/anchors/b", "r/manifests/b", "s/b"):
            with pytest.raises(BucketError):
                bucket.write(path, b"half")
    assert len(everything(tmp_path)) == 7
    for _ in range(2):
        bucket.tidy("r")
        left = everything(tmp_path)
        assert [path for path in left if not path.startswith("s/.")] == [".r.lock", "r/anchors/a", "s/a"]
        assert len(left) == 4
    bucket.tidy("absent")


def test_a_leftover_that_cannot_be_removed_is_a_sentence(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("r/a", b"one")
    (tmp_path / "bucket/r/.x.partial").touch()
    monkeypatch.setattr(Path, "unlink", failing(errno.EACCES))
    with pytest.raises(BucketError, match="cannot tidy r in bucket local:.* may write"):
        bucket.tidy("r")


def test_a_full_disk_is_told_with_the_folder_that_has_no_space(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("r/a", b"one")
    monkeypatch.setattr(os, "fsync", failing(errno.EDQUOT))
    with pytest.raises(BucketError, match=f"cannot read r/a .* no space left on device: {tmp_path}; free some"):
        bucket.download("r/a", tmp_path / "a")
    with pytest.raises(
        BucketError, match=f"cannot write r/b .* no space left on device: {tmp_path}/bucket; free some"
    ):
        bucket.write("r/b", b"one")


def test_a_bucket_that_may_not_be_looked_into_is_a_sentence(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_dir", failing(errno.EACCES))
    calls = (bucket.read, bucket.files, bucket.lock_file, bucket.tidy, lambda path: bucket.write(path, b"x"))
    for call in calls:
        with pytest.raises(BucketError, match="cannot .* in bucket local:.*may write"):
            call("r/a")


def test_a_run_has_a_lock_file_that_is_no_file_of_the_bucket(bucket: Bucket, tmp_path: Path) -> None:
    lock = bucket.lock_file("r")
    assert lock == tmp_path / "bucket/.r.lock"
    lock.touch()
    assert bucket.folders() == []
