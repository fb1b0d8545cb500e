"""An anchor beside the chain: another representation of a version that is published already."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from shared import layout
from shared.bucket import Bucket
from shared.container import content_hash
from shared.files import Label, write_anchor
from shared.types import DataFile, Manifest
from tests.shared.weights import Weights


def add_anchor(bucket: Bucket, version: int, weights: Weights, shards: int = 1) -> Manifest:
    """To run "r", with its tensors dealt out to so many files."""
    published = Manifest.from_json(bucket.read(layout.manifest("r", version)), "")
    anchor = replace(published, kind="anchor", files=(), base_version=None, base_fingerprint=None)
    whole, files = layout.anchor("r", version), []
    names = [whole] if shards == 1 else [whole.replace(".", f"-{n + 1:05d}-of-{shards:05d}.") for n in range(shards)]
    with TemporaryDirectory() as folder:
        path = Path(folder, "data")
        for number, name in enumerate(names):
            write_anchor(path, Label.of(anchor), dict(sorted(weights.items())[number::shards]))
            bucket.write(name, path)
            files.append(DataFile(name, path.stat().st_size, content_hash(path)))
    anchor = replace(anchor, files=tuple(files))
    bucket.write(layout.anchor_manifest("r", version), anchor.to_json())
    return anchor
