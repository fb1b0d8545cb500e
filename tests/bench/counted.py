"""A bucket that counts what one side of it moves: calls, and bytes up and down."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.bucket import Bucket
from tests.shared.passing_bucket import PassingBucket, size_of


@dataclass
class Count:
    calls: int = 0
    up: int = 0
    down: int = 0


class Counted(PassingBucket):
    """`count` is since the last `start`."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.count = Count()

    def start(self) -> Count:
        self.count = Count()
        return self.count

    def write(self, path: str, source: Path | bytes, *, replace: bool = False) -> None:
        self.count.calls += 1
        self.count.up += size_of(source)
        super().write(path, source, replace=replace)

    def read(self, path: str) -> bytes:
        self.count.calls += 1
        content = super().read(path)
        self.count.down += len(content)
        return content

    def read_all(self, paths: Sequence[str]) -> dict[str, bytes]:
        self.count.calls += 1
        found = super().read_all(paths)
        self.count.down += sum(map(len, found.values()))
        return found

    def download(self, path: str, target: Path) -> None:
        self.count.calls += 1
        super().download(path, target)
        self.count.down += size_of(target)

    def files(self, folder: str) -> list[str]:
        self.count.calls += 1
        return super().files(folder)

    def folders(self) -> list[str]:
        self.count.calls += 1
        return super().folders()

    def delete(self, paths: Sequence[str]) -> None:
        self.count.calls += 1
        super().delete(paths)
