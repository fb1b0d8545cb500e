"""Rebuilds and verifies a version from a bucket's files: written from shared/FORMAT.md, without the project's code."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

Numbers = np.ndarray[Any, np.dtype[Any]]
Tensor = tuple[str, list[int], Numbers]  # dtype, shape, and the elements' bit patterns as flat unsigned integers
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}  # all others have one byte


def rebuild(bucket: Path, run: str, version: int) -> dict[str, Tensor]:
    manifest = json.loads((bucket / run / f"manifests/{version:06d}.json").read_bytes())
    assert (manifest["format"], manifest["run_id"], manifest["version"]) == (1, run, version)
    weights = {} if manifest["kind"] == "anchor" else rebuild(bucket, run, manifest["base_version"])
    assert manifest["kind"] == "anchor" or fingerprint(weights) == manifest["base_fingerprint"]
    for file in manifest["files"]:
        raw = (bucket / file["path"]).read_bytes()
        assert (len(raw), xxhash.xxh3_128_hexdigest(raw)) == (file["nbytes"], file["content_hash"])
        metadata, tensors = read(raw)
        assert all(
            metadata[key] == str(manifest[key]) for key in ("format", "kind", "run_id", "version", "fingerprint")
        )
        if manifest["kind"] == "anchor":
            weights |= tensors
        else:
            patch(weights, metadata, tensors)
    assert fingerprint(weights) == manifest["fingerprint"]
    return weights


def read(raw: bytes) -> tuple[dict[str, str], dict[str, Tensor]]:
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    checksum = header["__metadata__"].pop("xxh3_128")
    canonical = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert checksum == xxhash.xxh3_128_hexdigest(canonical + data)
    metadata, tensors = header.pop("__metadata__"), {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[begin:end], f"<u{SIZES.get(entry['dtype'], 1)}").copy()
        tensors[name] = (entry["dtype"], entry["shape"], values)
    return metadata, tensors


def patch(weights: dict[str, Tensor], metadata: dict[str, str], tensors: dict[str, Tensor]) -> None:
    plain = {name: values.tobytes() for name, (_, _, values) in tensors.items()}
    if metadata["encoding"] == "packed":
        plain = {name: zstandard.ZstdDecompressor().decompress(frame) for name, frame in plain.items()}
    at = {name: 0 for name in ("gaps", "escapes", 1, 2, 4, 8)}
    gaps, escapes = np.frombuffer(plain.get("gaps", b""), "u1").astype("<i8"), planes(plain, "escapes", 0)
    gaps[gaps == 255] += escapes.astype("<i8")
    differences = {size: planes(plain, "differences", size) for size in (1, 2, 4, 8)}
    for name, dtype, shape, count in json.loads(metadata["tensors"]):
        values, size = weights[name][2], SIZES.get(dtype, 1)
        assert weights[name][:2] == (dtype, shape)
        if metadata["encoding"] == "coo":
            values[tensors[f"{name}.indices"][2]] = tensors[f"{name}.values"][2]
            continue
        indices = np.cumsum(gaps[at["gaps"] : at["gaps"] + count] + 1) - 1
        stored = differences[size][at[size] : at[size] + count]
        values[indices] += (stored >> 1) ^ -(stored & 1)
        at["gaps"] += count
        at[size] += count


def planes(plain: dict[str, bytes], name: str, size: int) -> Numbers:
    for width in [size] if size else [4, 8]:
        if stream := plain.get(f"{name}_{width}"):
            return np.frombuffer(stream, "u1").reshape(width, -1).T.copy().reshape(-1).view(f"<u{width}")
    return np.empty(0, f"<u{size or 4}")


def mix(x: Numbers) -> Numbers:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Numbers = x ^ (x >> np.uint64(31))
    return mixed


def fingerprint(weights: dict[str, Tensor]) -> str:
    total = 0
    for name, (dtype, shape, values) in weights.items():
        text = json.dumps([name, dtype, shape], separators=(",", ":"), ensure_ascii=False)
        seed = np.array([xxhash.xxh3_64_intdigest(text.encode())], "<u8")
        elements = mix(mix(seed + np.arange(values.size, dtype="<u8")) ^ values.astype("<u8"))
        total += int(mix(seed)[0]) + int(elements.sum(dtype="<u8"))
    return f"{total % (1 << 64):016x}"
