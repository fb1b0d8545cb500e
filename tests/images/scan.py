"""Looks for secrets where none may be: in folders, and in images with all that lies in their layers.

Finds given secrets, and whatever looks like a token of the Hub, in names and contents.
"""

import re
import tarfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO

_SIGNS = (b"hf_", b"TOKEN=", b"API_KEY=")  # a plain search for these is much faster than the expression
_TOKEN = rb"(?<![\w-])hf_[A-Za-z0-9]{34}(?![\w-])|(?:TOKEN|API_KEY)=[A-Za-z0-9_-]{16,}"
_BLOCK = 1 << 22
_OVERLAP = 512  # longer than any secret: one may lie across two blocks


class Scan:
    """Each finding is where something was found, and how it begins."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = [secret.encode() for secret in secrets]
        self._signs = (*_SIGNS, *known)
        self._pattern = re.compile(b"|".join([_TOKEN, *map(re.escape, known)]))

    def folder(self, folder: Path) -> list[str]:
        return [found for path in sorted(folder.rglob("*")) if path.is_file() for found in self._file(path)]

    def saved_image(self, folder: Path, passed_over: Collection[str]) -> list[str]:
        """Its configuration and history, and every file of every layer, but for layers `passed_over` by digest."""
        found: list[str] = []
        for path in sorted(folder.iterdir()):
            if path.name not in passed_over:
                found += self._layer(path) if tarfile.is_tarfile(path) else self._file(path)
        return found

    def _layer(self, layer: Path) -> Iterator[str]:
        with tarfile.open(layer) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                yield from self._bytes(f"a name in {layer.name}", member.name.encode())
                if file is not None:
                    yield from self._stream(member.name, file)

    def _file(self, path: Path) -> Iterator[str]:
        yield from self._bytes(f"the name {path}", path.name.encode())
        with path.open("rb") as file:
            yield from self._stream(str(path), file)

    def _stream(self, name: str, stream: IO[bytes]) -> Iterator[str]:
        tail = b""
        while block := stream.read(_BLOCK):
            yield from self._bytes(name, tail + block)
            tail = block[-_OVERLAP:]

    def _bytes(self, name: str, content: bytes) -> Iterator[str]:
        if any(sign in content for sign in self._signs):
            for found in self._pattern.finditer(content):
                yield f"{name}: {found[0][:40].decode(errors='replace')}"
