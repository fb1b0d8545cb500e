"""A bucket on the Hub, through huggingface_hub's two bucket calls and a read-back.

A batch that the Hub reports as done may lack files, so each upload is compared with what the Hub lists afterwards:
size and Xet hash, which `hf_xet` computes here without a download.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import hf_xet
import huggingface_hub
from httpx2 import HTTPError
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

from shared.errors import BucketError, MissingFileError

_REMEDIES = {
    401: "the token is missing or not valid; set HF_TOKEN",
    402: "the account's plan does not cover it",
    403: "the token may not do this; it needs access to this bucket",
    404: "there is no such bucket, or the token may not see it",
    429: "too many requests; try again later",
}


class BucketClient(Protocol):
    """What is used of huggingface_hub.HfApi; tests record these calls."""

    def batch_bucket_files(
        self, bucket_id: str, *, add: list[tuple[str | Path | bytes, str]] | None = None
    ) -> object: ...

    def download_bucket_files(
        self, bucket_id: str, files: list[tuple[Any, str | Path]], *, raise_on_missing_files: bool = False
    ) -> None: ...

    def get_bucket_paths_info(self, bucket_id: str, paths: Iterable[str]) -> Iterable[Any]: ...

    def list_bucket_tree(self, bucket_id: str, prefix: str | None = None) -> Iterable[Any]: ...


def xet_hash(path: Path) -> str:
    """The hash under which the Hub lists a file of this content."""
    return str(hf_xet.hash_files([str(path)])[0].hash)


class HubBucket:
    def __init__(self, name: str, client: BucketClient, hash_of: Callable[[Path], str] = xet_hash) -> None:
        self.name = name
        self._client = client
        self._hash_of = hash_of

    @classmethod
    def connect(cls, name: str, token: str | None) -> "HubBucket":
        return cls(name, huggingface_hub.HfApi(token=token))

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        with self._explained("write", path), _on_disk(source) as local:
            if not replace and self._listed(path) is not None:
                raise BucketError(f"{path} is already in bucket {self.name}, and files there are written once")
            self._client.batch_bucket_files(self.name, add=[(str(local), path)])
            self._compare(path, local)

    def read(self, path: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "file")
            self.download(path, target)
            return target.read_bytes()

    def download(self, path: str, target: Path) -> None:
        partial = target.with_name(f".{target.name}.partial")
        with self._explained("read", path):
            try:
                self._client.download_bucket_files(self.name, [(path, str(partial))], raise_on_missing_files=True)
                os.replace(partial, target)
            finally:
                partial.unlink(missing_ok=True)

    def files(self, folder: str) -> list[str]:
        try:
            with self._explained("list", folder):
                items = self._client.list_bucket_tree(self.name, f"{folder}/")
                return sorted(item.path for item in items if item.type == "file")
        except MissingFileError:
            return []

    def folders(self) -> list[str]:
        with self._explained("list", ""):
            return sorted(item.path for item in self._client.list_bucket_tree(self.name) if item.type == "directory")

    def _listed(self, path: str) -> Any | None:
        return next(iter(self._client.get_bucket_paths_info(self.name, [path])), None)

    def _compare(self, path: str, local: Path) -> None:
        listed, expected = self._listed(path), (local.stat().st_size, self._hash_of(local))
        found = None if listed is None else (listed.size, listed.xet_hash)
        if found != expected:
            raise BucketError(
                f"{path} in bucket {self.name} reads back as {found}, {expected} was uploaded; try again"
            )

    @contextmanager
    def _explained(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except EntryNotFoundError as error:
            raise MissingFileError(f"{path} is not in bucket {self.name}") from error
        except HfHubHTTPError as error:
            status = error.response.status_code
            reason = f"HTTP {status}: {_REMEDIES.get(status, 'the Hub does not answer as it should; try again later')}"
            raise BucketError(f"cannot {verb} {path or 'folder'} in bucket {self.name}: {reason}") from error
        except (HTTPError, OSError, RuntimeError) as error:  # hf_xet raises RuntimeError where it has no better class
            raise BucketError(f"cannot {verb} {path or 'folder'} in bucket {self.name}: {error}") from error


@contextmanager
def _on_disk(source: Path | bytes) -> Iterator[Path]:
    """Large content is uploaded from a file, never from memory; small content becomes one."""
    if isinstance(source, Path):
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        path.write_bytes(source)
        yield path
