"""A bucket in memory that records its calls, and fails at a chosen one: before it has an effect, or after."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import BucketError, MissingFileError


@dataclass
class MemoryBucket:
    """`fail_in` counts calls down: at 0 the call fails. With `late`, a write that fails has stored its file."""

    name: str = "local:memory"
    stored: dict[str, bytes] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    fail_in: int | None = None
    late: bool = False

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        failing = self._count(f"write {path}")
        if failing and not self.late:
            raise BucketError(f"cannot write {path}")
        if path in self.stored and not replace:
            raise BucketError(f"{path} is already in bucket {self.name}")
        self.stored[path] = source if isinstance(source, bytes) else source.read_bytes()
        if failing:
            raise BucketError(f"{path} was stored, but not read back")

    def read(self, path: str) -> bytes:
        self._count_or_fail(f"read {path}")
        if path not in self.stored:
            raise MissingFileError(f"{path} is not in bucket {self.name}")
        return self.stored[path]

    def read_all(self, paths: Sequence[str]) -> dict[str, bytes]:
        self._count_or_fail(f"read {len(paths)} files")
        return {path: self.stored[path] for path in paths if path in self.stored}

    def download(self, path: str, target: Path) -> None:
        target.write_bytes(self.read(path))

    def files(self, folder: str) -> list[str]:
        self._count_or_fail(f"list {folder}")
        return sorted(path for path in self.stored if path.rpartition("/")[0] == folder)

    def folders(self) -> list[str]:
        self._count_or_fail("list")
        return sorted({path.split("/")[0] for path in self.stored if "/" in path})

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._count_or_fail(f"delete {path}")
            self.stored.pop(path, None)

    def lock_file(self, run_id: str) -> None:
        return None

    def tidy(self, run_id: str) -> None:
        pass

    def edit(self, place: str, /, **fields: Any) -> None:
        """Replace fields of a stored JSON document."""
        self.stored[place] = json.dumps({**json.loads(self.stored[place]), **fields}).encode()

    def written(self) -> list[str]:
        return [call.removeprefix("write ") for call in self.calls if call.startswith("write ")]

    def _count(self, call: str) -> bool:
        self.calls.append(call)
        if self.fail_in is None:
            return False
        self.fail_in -= 1
        if self.fail_in >= 0:
            return False
        self.fail_in = None
        return True

    def _count_or_fail(self, call: str) -> None:
        if self._count(call):
            raise BucketError(f"cannot {call}")
