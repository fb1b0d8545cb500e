"""`python -m tests.faults.reader BUCKET RUN [--newest]`: what a fresh receiver reads of a run's versions, as JSON.

Each is brought in by a new follower of its own, which takes that version for the newest.
"""

import argparse
import json
import os

import xxhash

from shared import layout
from shared.bucket import Bucket, open_bucket
from shared.errors import ChainError, SyncError
from shared.follower import Follower, Weights
from shared.reader import RunReader
from shared.types import Manifest, Pointer
from tests.faults.digest import digest


class BucketAsOf:
    """Of a bucket, what a follower needs; the pointer is at one version."""

    def __init__(self, bucket: Bucket, run_id: str, version: int) -> None:
        self.name = bucket.name
        self.folders, self.files, self.download = bucket.folders, bucket.files, bucket.download
        self.write, self.delete, self.read_all = bucket.write, bucket.delete, bucket.read_all
        self.lock_file, self.tidy = bucket.lock_file, bucket.tidy
        self._bucket = bucket
        self._run_id, self._version = run_id, version

    def read(self, path: str) -> bytes:
        if path != layout.pointer(self._run_id):
            return self._bucket.read(path)
        manifest = layout.manifest(self._run_id, self._version)
        found = xxhash.xxh3_128_hexdigest(self._bucket.read(manifest))
        return Pointer(self._run_id, self._version, manifest, found).to_json()


def read(bucket: Bucket, manifest: Manifest) -> dict[str, object]:
    """The digest of a version's bits, empty with an `error` where it cannot be read."""
    told = {"version": manifest.version, "kind": manifest.kind, "fingerprint": manifest.fingerprint}
    weights: Weights = {}
    try:
        Follower(BucketAsOf(bucket, manifest.run_id, manifest.version), manifest.run_id).catch_up(weights)
    except SyncError as error:
        return {**told, "digest": "", "error": str(error)}
    return {**told, "digest": digest(weights), "error": ""}


def beyond(bucket: Bucket, reader: RunReader) -> tuple[list[str], list[str]]:
    """All data files, and those older than the second newest whole anchor."""
    folders = (layout.anchors(reader.run_id), layout.deltas(reader.run_id))
    versions = {path: layout.version_of(path) or 0 for folder in folders for path in bucket.files(folder)}
    anchored = {version for path, version in versions.items() if path.startswith(f"{folders[0]}/")}
    whole = [version for version in sorted(anchored, reverse=True) if _is_whole(reader, version)]
    return list(versions), [path for path, version in versions.items() if version < whole[:2][-1]]


def _is_whole(reader: RunReader, version: int) -> bool:
    try:
        return reader.manifest(version).kind == "anchor" or reader.anchor(version) is not None
    except ChainError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.reader", description=__doc__)
    parser.add_argument("bucket")
    parser.add_argument("run_id")
    parser.add_argument("--newest", action="store_true", help="that version only")
    arguments = parser.parse_args()
    bucket = open_bucket(arguments.bucket, os.environ.get("HF_TOKEN"))
    reader = RunReader(bucket, arguments.run_id)
    versions = [reader.newest()] if arguments.newest else list(reader.manifests())
    data, old = beyond(bucket, reader)
    print(json.dumps({"versions": [read(bucket, one) for one in versions], "data": len(data), "beyond": old}))


if __name__ == "__main__":
    main()
