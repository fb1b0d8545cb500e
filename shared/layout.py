"""Where things lie in a bucket. All of a run is in the folder of its id; data and manifests are written once."""

import re
from collections.abc import Iterable

# At least six digits and no more zeros in front than that takes, so that a version has one name.
_VERSION = re.compile(r"(?:step_)?([0-9]{6}|[1-9][0-9]{6,8})(?:-[0-9]{5}-of-[0-9]{5})?\.(?:safetensors|json)")


def run_file(run_id: str) -> str:
    return f"{run_id}/run.json"


def pointer(run_id: str) -> str:
    return f"{run_id}/latest.json"


def anchor(run_id: str, version: int, number: int = 1, count: int = 1) -> str:
    """One of the `count` files of an anchor, the first of which has number 1."""
    shard = f"-{number:05d}-of-{count:05d}" if count > 1 else ""
    return f"{anchors(run_id)}/step_{version:06d}{shard}.safetensors"


def delta(run_id: str, version: int) -> str:
    return f"{deltas(run_id)}/step_{version:06d}.safetensors"


def manifest(run_id: str, version: int) -> str:
    return f"{manifests(run_id)}/{version:06d}.json"


def anchor_manifest(run_id: str, version: int) -> str:
    """The manifest of an anchor beside the file of a version that is published already."""
    return f"{manifests(run_id)}/{version:06d}.anchor.json"


def rollouts(run_id: str, version: int) -> str:
    return f"{rollout_folder(run_id)}/{version:06d}.jsonl"


def rollout_folder(run_id: str) -> str:
    return f"{run_id}/rollouts"


def end(run_id: str, version: int) -> str:
    """How training ended at a version. A run that was resumed has ended more than once."""
    return f"{ends(run_id)}/{version:06d}.json"


def ends(run_id: str) -> str:
    return f"{run_id}/ends"


def anchors(run_id: str) -> str:
    return f"{run_id}/anchors"


def deltas(run_id: str) -> str:
    return f"{run_id}/deltas"


def manifests(run_id: str) -> str:
    return f"{run_id}/manifests"


def version_of(path: str) -> int | None:
    """The version that a data file or manifest belongs to; None for any other file, an extra anchor's manifest too."""
    match = _VERSION.fullmatch(path.rsplit("/", 1)[-1])
    return int(match[1]) if match else None


def by_version(paths: Iterable[str]) -> dict[int, list[str]]:
    """The data files and manifests among the paths, by the version that they belong to."""
    found: dict[int, list[str]] = {}
    for path in paths:
        if (version := version_of(path)) is not None:
            found.setdefault(version, []).append(path)
    return found
