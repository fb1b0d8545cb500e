"""The two binary forms that Xet clients upload: shards say what files are made of, xorbs hold the chunks.

Reads no more of them than answering a download takes; hashes are believed, not computed.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SHARD_HEADER = 48
_BLOCK = 48
_END_OF_FILES = b"\xff" * 32
_WITH_VERIFICATION, _WITH_METADATA = 1 << 31, 1 << 30
_CHUNK_HEADER = 8


@dataclass(frozen=True)
class Segment:
    """Chunks `start` to `end` (exclusive) of a xorb, and the bytes that they unpack to."""

    xorb: str
    start: int
    end: int
    unpacked: int


def files_of(shard: bytes) -> Iterator[tuple[str, list[Segment]]]:
    """The hash of each file that a shard describes, with what it is made of."""
    at = _SHARD_HEADER
    while shard[at : at + 32] != _END_OF_FILES:
        name, (flags, count) = _hex(shard[at : at + 32]), struct.unpack_from("<II", shard, at + 32)
        at += _BLOCK
        yield name, [_segment(shard, at + number * _BLOCK) for number in range(count)]
        at += count * _BLOCK * (2 if flags & _WITH_VERIFICATION else 1)
        at += _BLOCK if flags & _WITH_METADATA else 0


def chunk_ends(xorb: Path, count: int) -> list[int]:
    """Where in the xorb's file each of its first `count` chunks ends, in bytes; ValueError when there are fewer."""
    ends: list[int] = []
    at = 0
    with xorb.open("rb") as file:
        for _ in range(count):
            file.seek(at)
            header = file.read(_CHUNK_HEADER)
            if len(header) < _CHUNK_HEADER:
                raise ValueError(f"{xorb.name} has {len(ends)} chunks, {count} were asked for")
            at += _CHUNK_HEADER + int.from_bytes(header[1:4], "little")
            ends.append(at)
    return ends


def _segment(shard: bytes, at: int) -> Segment:
    _, unpacked, start, end = struct.unpack_from("<IIII", shard, at + 32)
    return Segment(_hex(shard[at : at + 32]), start, end, unpacked)


def _hex(digest: bytes) -> str:
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", digest))
