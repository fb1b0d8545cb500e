"""What HubBucket uses of huggingface_hub, in memory, as a client that records its calls."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.bucket.calls import BucketClient
from shared.bucket.hub import HubBucket
from shared.bucket.retries import Limits

QUICK = Limits(listing=0.02, attempts=2, first_wait=0.001, longest_wait=0.01)


@dataclass(frozen=True)
class Item:
    type: str
    path: str
    size: int
    xet_hash: str


class RecordingClient:
    """`spoil` changes what is stored; None stores nothing. `arriving` changes what is downloaded."""

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
