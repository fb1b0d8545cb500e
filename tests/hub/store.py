"""What the stand-in holds, in a folder: xorbs, what files are made of, and which path of which bucket is which file.

A stand-in that is started again on the folder goes on where the last one ended. Nothing is ever collected.
"""

import functools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from tests.hub.xet import Segment, chunk_ends


@dataclass(frozen=True)
class Entry:
    """A file of a bucket. It is listed from `listed_at` on and can be downloaded from `bytes_at` on, in Unix time."""

    path: str
    xet_hash: str
    size: int
    mtime: int
    listed_at: float
    bytes_at: float

    def info(self) -> dict[str, object]:
        moment = datetime.fromtimestamp(self.listed_at, UTC).isoformat().replace("+00:00", "Z")
        stated = {"path": self.path, "size": self.size, "xetHash": self.xet_hash}
        return {"type": "file", **stated, "mtime": moment, "uploadedAt": moment}


class Store:
    def __init__(self, folder: Path) -> None:
        self._xorbs, self._files, self._entries = (folder / name for name in ("xorbs", "files", "entries"))
        for place in (self._xorbs, self._files, self._entries):
            place.mkdir(parents=True, exist_ok=True)
        self._listed: dict[str, dict[str, Entry]] = {}
        self._coming: dict[str, dict[str, Entry]] = {}
        for saved in self._entries.glob("*/*.json"):
            bucket, entry = json.loads(saved.read_text())
            self._listed.setdefault(bucket, {})[entry["path"]] = Entry(**entry)

    def xorb(self, name: str) -> Path:
        return self._xorbs / name

    def add_file(self, name: str, segments: list[Segment]) -> None:
        """Raises ValueError where a part is not there."""
        for segment in segments:
            if not self.xorb(segment.xorb).exists():
                raise ValueError(f"xorb {segment.xorb} was not uploaded")
        _write(self._files / f"{name}.json", [asdict(segment) for segment in segments])

    def segments(self, name: str) -> list[Segment] | None:
        """What a file is made of; None when no shard described it."""
        place = self._files / f"{name}.json"
        return [Segment(**segment) for segment in json.loads(place.read_text())] if place.exists() else None

    def put(self, bucket: str, path: str, xet_hash: str, mtime: int, list_late: float, bytes_late: float) -> bool:
        """Whether the file's content is known."""
        segments = self.segments(xet_hash)
        if segments is None:
            return False
        now, size = time.time(), sum(segment.unpacked for segment in segments)
        entry = Entry(path, xet_hash, size, mtime, now + list_late, now + bytes_late)
        self._coming.get(bucket, {}).pop(path, None)
        (self._coming if list_late else self._listed).setdefault(bucket, {})[path] = entry
        _write(self._place(bucket, path), [bucket, asdict(entry)])
        return True

    def remove(self, bucket: str, path: str) -> None:
        for table in (self._coming, self._listed):
            table.get(bucket, {}).pop(path, None)
        self._place(bucket, path).unlink(missing_ok=True)

    def empty(self) -> None:
        for table in (self._coming, self._listed):
            for bucket, path in [(bucket, path) for bucket, entries in table.items() for path in entries]:
                self.remove(bucket, path)

    def entries(self, bucket: str) -> dict[str, Entry]:
        """By path, those that are listed by now."""
        listed, coming = self._listed.setdefault(bucket, {}), self._coming.get(bucket, {})
        for path in [path for path, entry in coming.items() if entry.listed_at <= time.time()]:
            listed[path] = coming.pop(path)
        return listed

    def paths_of(self, xet_hash: str) -> list[str]:
        return [entry.path for entry in self._all() if entry.xet_hash == xet_hash]

    def has_bytes(self, xet_hash: str) -> bool:
        """False while a file of this content is one whose bytes come late."""
        return all(entry.bytes_at <= time.time() for entry in self._all() if entry.xet_hash == xet_hash)

    def _all(self) -> Iterator[Entry]:
        for table in (self._listed, self._coming):
            for entries in table.values():
                yield from entries.values()

    def _place(self, bucket: str, path: str) -> Path:
        return self._entries / quote(bucket, safe="") / f"{quote(path, safe='')}.json"


@functools.lru_cache(maxsize=4096)
def byte_range(xorb: Path, start: int, end: int) -> tuple[int, int]:
    """The first and the last byte of these chunks in the xorb's file."""
    ends = [0, *chunk_ends(xorb, end)]
    return ends[start], ends[end] - 1


def _write(place: Path, document: object) -> None:
    place.parent.mkdir(exist_ok=True)
    temporary = place.with_suffix(".new")
    temporary.write_text(json.dumps(document))
    os.replace(temporary, place)
