"""Streams of bytes as zstd frames: one whole frame each, which states the size of its content.

Knows nothing of what the bytes mean. Reading is for hostile input too: a frame never unfolds to more than is expected.
"""

from collections.abc import Mapping

import numpy as np
import zstandard

from shared.errors import IntegrityError

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_LEVEL = 1  # what is left to a frame is entropy coding; higher levels look longer for repetitions that are not there


def fold(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(content)


def unfold(streams: Mapping[str, bytes], name: str, nbytes: int) -> Bytes:
    """The content of the stream `name`, which is left out of `streams` when it is empty.

    Raises IntegrityError unless it is one whole frame of exactly `nbytes` bytes.
    """
    frame = streams.get(name, b"")
    if bool(frame) != bool(nbytes):  # an empty frame could hide bytes after its end
        state = "there" if frame else "missing"
        raise IntegrityError(f"stream {name!r} is {state}, {nbytes} bytes are expected of it")
    if not frame:
        return np.empty(0, np.uint8)
    if (stated := _stated(name, frame)) != nbytes:
        raise IntegrityError(f"stream {name!r} holds {stated} bytes, {nbytes} are expected")
    try:
        plain = zstandard.ZstdDecompressor().decompress(frame, max_output_size=nbytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"stream {name!r} is not a zstd frame: {error}") from error
    return np.frombuffer(plain, np.uint8)


def unfold_text(streams: Mapping[str, bytes], name: str, longest: int) -> bytes:
    """The content of a stream that has some. Raises IntegrityError unless it is a whole frame of at most `longest`."""
    nbytes = _stated(name, streams.get(name, b""))
    if nbytes > longest:
        raise IntegrityError(f"stream {name!r} holds {nbytes} bytes, at most {longest} are read")
    return unfold(streams, name, nbytes).tobytes()


def _stated(name: str, frame: bytes) -> int:
    """How many bytes of content a frame says it has."""
    try:
        stated = zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"stream {name!r} is not a zstd frame: {error}") from error
    if stated < 0:
        raise IntegrityError(f"stream {name!r} does not say how many bytes it holds")
    return stated
