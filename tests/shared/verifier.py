"""Verifies versions in a bucket as FORMAT.md describes it, on top of the plain decoder: no code of the project."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tests.shared.decoder import Patterns, rebuild

Fields = dict[str, Any]


def verify(bucket: Path, run: str, version: int) -> None:
    """Those it is based on, then the version. Raises ValueError for a file or weights that are not what is stated."""
    manifest = json.loads((bucket / run / f"manifests/{version:06d}.json").read_bytes())
    if manifest["kind"] == "delta":
        verify(bucket, run, manifest["base_version"])
    for file in manifest["files"]:
        check_file(bucket / file["path"], file, manifest)
    described = shapes(bucket, run, version)
    weights = rebuild(bucket, run, version)
    if fingerprint(weights, described) != manifest["fingerprint"]:
        raise ValueError(f"the weights of version {version} are not those of its manifest")


def check_file(path: Path, file: Fields, manifest: Fields) -> None:
    raw = path.read_bytes()
    if (len(raw), xxhash.xxh3_128_hexdigest(raw)) != (file["nbytes"], file["content_hash"]):
        raise ValueError(f"{path.name} is not the file of its manifest")
    header, data = split(raw)
    metadata = header["__metadata__"]
    checksum = metadata.pop("xxh3_128")
    canonical = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    if xxhash.xxh3_128_hexdigest(canonical + data) != checksum:
        raise ValueError(f"the checksum of {path.name} does not hold")
    keys = ["format", "kind", "run_id", "version", "fingerprint"]
    keys += ["base_version", "base_fingerprint"] if manifest["kind"] == "delta" else []
    if any(metadata[key] != str(manifest[key]) for key in keys):
        raise ValueError(f"{path.name} is labelled as another version")


def split(raw: bytes) -> tuple[Fields, bytes]:
    end = 8 + struct.unpack_from("<Q", raw)[0]
    return json.loads(raw[8:end]), raw[end:]


def shapes(bucket: Path, run: str, version: int) -> dict[str, tuple[str, list[int]]]:
    """Dtype and shape of each tensor, from the anchor."""
    manifest = json.loads((bucket / run / f"manifests/{version:06d}.json").read_bytes())
    if manifest["kind"] == "delta":
        return shapes(bucket, run, manifest["base_version"])
    headers = [split((bucket / file["path"]).read_bytes())[0] for file in manifest["files"]]
    return {
        name: (entry["dtype"], entry["shape"])
        for header in headers
        for name, entry in header.items()
        if name != "__metadata__"
    }


def mix(x: Patterns) -> Patterns:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Patterns = x ^ (x >> np.uint64(31))
    return mixed


def fingerprint(weights: dict[str, Patterns], described: dict[str, tuple[str, list[int]]]) -> str:
    total = 0
    for name, (dtype, shape) in described.items():
        text = json.dumps([name, dtype, shape], separators=(",", ":"), ensure_ascii=False)
        seed = np.array([xxhash.xxh3_64_intdigest(text.encode())], np.uint64)
        places = seed + np.arange(weights[name].size, dtype=np.uint64)
        elements = mix(mix(places) ^ weights[name].astype(np.uint64))
        total += int(mix(seed)[0]) + int(elements.sum(dtype=np.uint64))
    return f"{total % (1 << 64):016x}"
