"""Rebuilds a version of the weights in a bucket, as FORMAT.md describes it. No checksum or fingerprint is verified."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

Patterns = np.ndarray[Any, np.dtype[Any]]

SIZES = dict(BF16=2, F16=2, F32=4, F64=8, F8_E4M3=1, F8_E5M2=1, I8=1, U8=1, BOOL=1, I16=2, I32=4, I64=8)


def read_file(path: Path) -> tuple[dict[str, str], dict[str, Patterns]]:
    """The metadata of a safetensors file, and the bit patterns of its tensors, flat."""
    content = path.read_bytes()
    start = 8 + struct.unpack_from("<Q", content)[0]
    header, data = json.loads(content[8:start]), content[start:]
    metadata = header.pop("__metadata__")
    return metadata, {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], f"<u{SIZES[entry['dtype']]}")
        for name, entry in header.items()
    }


def numbers(streams: dict[str, Patterns], name: str, size: int) -> Patterns:
    """The numbers of a packed stream: decompressed, and gathered from their byte planes."""
    content = zstandard.ZstdDecompressor().decompress(streams[name].tobytes()) if name in streams else b""
    return np.frombuffer(content, np.uint8).reshape(size, -1).T.copy().view(f"<u{size}").reshape(-1)


def apply_delta(weights: dict[str, Patterns], path: Path) -> None:
    metadata, tensors = read_file(path)
    if metadata["encoding"] == "coo":
        for name, *_ in json.loads(metadata["tensors"]):
            weights[name][tensors[f"{name}.indices"]] = tensors[f"{name}.values"]
        return
    table = json.loads(numbers(tensors, "table", 1).tobytes())
    gaps = numbers(tensors, "gaps", 1).astype(np.int64)
    shifts, gaps = gaps[: len(table)], gaps[len(table) :]
    gaps[gaps == 255] = numbers(tensors, "gap_escapes", 8)
    remainders = numbers(tensors, "remainders", 1)
    halves = numbers(tensors, "differences", 1)
    differences = np.stack([halves & 15, halves >> 4], axis=1).reshape(-1)
    escapes = {size: numbers(tensors, f"difference_escapes_{size}", size) for size in (1, 2, 4, 8)}
    for (name, dtype, _, count), shift in zip(table, shifts, strict=True):
        size, taken = SIZES[dtype], (count * int(shift) + 7) // 8
        bits = np.unpackbits(remainders[:taken], bitorder="little")[: count * shift].reshape(shift, count)
        steps = gaps[:count] << shift
        for place in range(shift):
            steps += bits[place].astype(np.int64) << place
        zigzag = differences[:count].astype(f"<u{size}")
        large = int((zigzag == 15).sum())
        zigzag[zigzag == 15] = escapes[size][:large]
        weights[name][np.cumsum(steps + 1) - 1] += (zigzag >> 1) ^ -(zigzag & 1)
        gaps, differences, remainders = gaps[count:], differences[count:], remainders[taken:]
        escapes[size] = escapes[size][large:]


def rebuild(bucket: Path, run: str, version: int) -> dict[str, Patterns]:
    """The bit patterns of each tensor of a version, flat: its anchor, with all deltas since applied."""
    manifests = bucket / run / "manifests"
    chain = [json.loads((manifests / f"{version:06d}.json").read_bytes())]
    while chain[-1]["kind"] == "delta":
        chain.append(json.loads((manifests / f"{chain[-1]['base_version']:06d}.json").read_bytes()))
    shards = [read_file(bucket / entry["path"])[1] for entry in chain.pop()["files"]]
    if not shards:
        raise ValueError("the anchor is held by reference to the base model, whose weights are not in the bucket")
    weights = {name: bits.copy() for shard in shards for name, bits in shard.items()}
    for delta in reversed(chain):
        apply_delta(weights, bucket / delta["path"])
    return weights


def digests(tensors: dict[str, Patterns]) -> dict[str, str]:
    """The sha256 of each tensor's bytes."""
    return {name: hashlib.sha256(patterns.tobytes()).hexdigest() for name, patterns in tensors.items()}
