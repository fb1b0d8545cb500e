"""A bucket on the Hub. What may pass by itself is tried again, and nothing is believed that can be compared.

A batch that the Hub reports as done may lack files, and a download may bring other bytes without an error. So both are
compared with what the Hub lists: size and Xet hash, which `hf_xet` computes here.
"""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hf_xet

from shared.bucket.calls import BucketClient, HubCalls
from shared.bucket.client import connect
from shared.bucket.failures import PassingError, explained
from shared.bucket.retries import PATIENT, Limits
from shared.errors import BucketError, MissingFileError

_BATCH = 500  # files in one call
_KEPT = 64  # small files that were read last


@dataclass(frozen=True)
class Content:
    """What the Hub lists of a file, to compare it. An empty file has no hash."""

    size: int
    xet_hash: str

    @classmethod
    def listed(cls, item: Any) -> "Content":
        return cls(item.size, item.xet_hash if item.size else "")


def xet_hash(path: Path) -> str:
    """The hash under which the Hub lists a file of this content."""
    return str(hf_xet.hash_files([str(path)])[0].hash)


class HubBucket:
    def __init__(
        self,
        name: str,
        client: BucketClient,
        hash_of: Callable[[Path], str] = xet_hash,
        limits: Limits = PATIENT,
    ) -> None:
        self.name = name
        self._calls = HubCalls(name, client, limits)
        self._hash_of = hash_of
        self._limits = limits
        self._kept: dict[str, tuple[Content, bytes]] = {}

    @classmethod
    def connect(cls, name: str, token: str | None) -> "HubBucket":
        return cls(name, connect(token))

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        what = self._cannot("write", path)
        with explained(what), _on_disk(source) as local:
            content, sent = self._content_of(local), False

            def attempt() -> None:
                nonlocal sent
                found = self._find(what, path) if sent or not replace else None
                if sent and found == content:
                    return  # only the answer was lost
                if found is not None and not replace:
                    other = " with other content" if sent else ""
                    there = f"{path} is already in bucket {self.name}{other}"
                    raise BucketError(f"{there}, and files there are written once")
                sent = True
                self._calls.upload(what, local, path, content.size)
                self._limits.repeated_until_listed(lambda: self._compare(what, path, content))

            self._limits.retried(attempt)

    def read(self, path: str) -> bytes:
        with explained(self._cannot("read", path)), _scratch_file() as target:
            self.download(path, target)
            return target.read_bytes()

    def read_all(self, paths: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for start in range(0, len(paths), _BATCH):
            found |= self._read_batch(paths[start : start + _BATCH])
        return found

    def download(self, path: str, target: Path) -> None:
        what = self._cannot("read", path)

        def attempt() -> None:
            items = self._calls.listed(what, [path])
            if not items:
                raise MissingFileError(f"{path} is not in bucket {self.name}")
            self._fetch(what, items[0], target)

        self._limits.retried(attempt)

    def _read_batch(self, paths: Sequence[str]) -> dict[str, bytes]:
        what = self._cannot("read", f"{paths[0]} and {len(paths) - 1} more")

        def attempt() -> dict[str, bytes]:
            with explained(what), tempfile.TemporaryDirectory() as folder:
                listed = {item.path: item for item in self._calls.listed(what, paths)}
                known = {path: raw for path, item in listed.items() if (raw := self._known(item)) is not None}
                items = [item for path, item in listed.items() if path not in known]
                places = [Path(folder, str(number)) for number in range(len(items))]
                if items:
                    self._calls.fetch_all(what, list(zip(items, places, strict=True)))
                for item, place in zip(items, places, strict=True):
                    self._check_arrived(what, item, place)
                read = {item.path: place.read_bytes() for item, place in zip(items, places, strict=True)}
                self._keep({path: (Content.listed(listed[path]), raw) for path, raw in read.items()})
                return known | read

        return self._limits.retried(attempt)

    def _known(self, item: Any) -> bytes | None:
        """What was read before, where the same is listed still: whoever reads a few files again and again pays for
        those that have changed."""
        content, raw = self._kept.get(item.path, (None, b""))
        return raw if content == Content.listed(item) else None

    def _keep(self, read: dict[str, tuple[Content, bytes]]) -> None:
        others = {path: kept for path, kept in self._kept.items() if path not in read}
        self._kept = dict([*others.items(), *read.items()][-_KEPT:])

    def files(self, folder: str) -> list[str]:
        # The Hub takes the prefix literally, so the slash keeps out what only begins alike.
        items = self._tree(folder, f"{folder}/", recursive=True)
        return sorted(item.path for item in items if item.type == "file" and item.path.rpartition("/")[0] == folder)

    def folders(self) -> list[str]:
        items = self._tree("the folders", None, recursive=False)
        return sorted({item.path.split("/")[0] for item in items if item.type == "directory" or "/" in item.path})

    def delete(self, paths: Sequence[str]) -> None:
        what = self._cannot("delete", ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else ""))

        def attempt() -> None:
            there = [item.path for item in self._calls.listed(what, paths)]
            if there:
                self._calls.delete(what, there)

        self._limits.retried(attempt)

    def lock_file(self, run_id: str) -> Path:
        """In a folder that all writers of this user on this host find."""
        with explained(f"cannot lock run {run_id!r} of bucket {self.name}"):
            folder = Path(tempfile.gettempdir(), f"async-rl-spaces-{os.getuid()}")
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.stat().st_uid != os.getuid():
                raise BucketError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
        return folder / f"{hashlib.sha256(f'{self.name} {run_id}'.encode()).hexdigest()[:16]}.lock"

    def tidy(self, run_id: str) -> None:
        """An upload that was cut off leaves nothing that the Hub lists."""

    def _tree(self, named: str, prefix: str | None, *, recursive: bool) -> list[Any]:
        what = self._cannot("list", named)
        try:
            return self._limits.retried(lambda: self._calls.tree(what, prefix, recursive=recursive))
        except MissingFileError:
            return []

    def _fetch(self, what: str, item: Any, target: Path) -> None:
        # A name per attempt: one that was given up may still be writing.
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
        with explained(what):
            try:
                self._calls.fetch_all(what, [(item, partial)])
                self._check_arrived(what, item, partial)
                os.replace(partial, target)
            finally:
                partial.unlink(missing_ok=True)

    def _check_arrived(self, what: str, item: Any, place: Path) -> None:
        found, listed = self._content_of(place), Content.listed(item)
        if found != listed:
            raise PassingError(f"{what}: {found} has arrived, {listed} is listed; try again")

    def _find(self, what: str, path: str) -> Content | None:
        return next(map(Content.listed, self._calls.listed(what, [path])), None)

    def _compare(self, what: str, path: str, content: Content) -> None:
        found = self._find(what, path)
        if found != content:
            raise PassingError(f"{what}: it reads back as {found}, {content} was uploaded; try again")

    def _content_of(self, local: Path) -> Content:
        size = local.stat().st_size
        return Content(size, self._hash_of(local) if size else "")

    def _cannot(self, verb: str, path: str) -> str:
        return f"cannot {verb} {path} in bucket {self.name}"


@contextmanager
def _on_disk(source: Path | bytes) -> Iterator[Path]:
    """Large content is uploaded from a file, never from memory; small content becomes one."""
    if isinstance(source, Path):
        yield source
        return
    with _scratch_file() as path:
        path.write_bytes(source)
        yield path


@contextmanager
def _scratch_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "file")
