"""The one place where files are kept between the units: a folder on this machine, or a bucket on the Hub.

Knows paths and bytes only. What lies where is for `shared.layout`, in which order it is written for the publisher.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shared.bucket.folder import FolderBucket
from shared.bucket.hub import HubBucket
from shared.errors import BucketError

LOCAL = "local:"


class Bucket(Protocol):
    """Paths are relative to the bucket, with forward slashes. Every call raises BucketError when the bucket cannot be
    reached or refuses; MissingFileError when it answers that the file is not there.
    """

    name: str

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        """Store a file and return once it has been read back equal. A file that exists is refused unless `replace`."""

    def read(self, path: str) -> bytes:
        """A small file's content."""

    def read_all(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Many small files' contents in few calls; those that are not there are left out."""

    def download(self, path: str, target: Path) -> None:
        """Fetch a file of any size; `target` exists only when all of it has arrived."""

    def files(self, folder: str) -> list[str]:
        """The paths of the files directly in a folder, sorted; an absent folder has none."""

    def folders(self) -> list[str]:
        """The names of the top-level folders, sorted."""

    def delete(self, paths: Sequence[str]) -> None:
        """Remove files; those that are not there are no error."""

    def lock_file(self, run_id: str) -> Path | None:
        """Where writers of a run on this host exclude each other; None where no other process can be one."""

    def tidy(self, run_id: str) -> None:
        """Remove what killed writers of this run left; call it only while the run's lock is held."""


def open_bucket(name: str, token: str | None = None) -> Bucket:
    """`local:/path` is a folder, created when absent; `user/name` a bucket on the Hub. Raises BucketError."""
    if name.startswith(LOCAL):
        return FolderBucket(name, Path(name.removeprefix(LOCAL)))
    if not re.fullmatch(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", name):
        raise BucketError(f"bucket {name!r} is neither 'local:/path' nor 'user/name'; set BUCKET to one of these")
    return HubBucket.connect(name, token)
