"""Reading a run from a bucket: the newest run, its pointer and manifests, and data files that match them.

Knows nothing of weights: what a file leads to is verified by whoever applies it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import xxhash

from shared import layout
from shared.bucket import Bucket
from shared.container import content_hash
from shared.errors import ChainError, IntegrityError, MissingFileError
from shared.types import Manifest, Pointer, Run, checked_run_id


def list_runs(bucket: Bucket) -> list[Run]:
    """All runs of the bucket, the one created last at the end."""
    runs = []
    for folder in bucket.folders():
        try:
            runs.append(_read_run(bucket, folder))
        except MissingFileError:
            continue  # a folder of something else
    return sorted(runs, key=lambda run: run.age)


def newest_run(bucket: Bucket) -> Run:
    runs = list_runs(bucket)
    if not runs:
        raise ChainError(f"there is no run in bucket {bucket.name} yet; start a trainer with this bucket")
    return runs[-1]


class RunReader:
    """Manifests never change, so each is read once. Extra anchors come later than their versions: they are listed."""

    def __init__(self, bucket: Bucket, run_id: str) -> None:
        self.bucket = bucket
        self.run_id = checked_run_id(run_id)
        self._manifests: dict[int, Manifest] = {}
        self._anchors: dict[int, Manifest] = {}
        self._listed: set[str] = set()
        self._asked = -1

    def run(self) -> Run:
        try:
            return _read_run(self.bucket, self.run_id)
        except MissingFileError as error:
            raise ChainError(f"there is no run {self.run_id!r} in bucket {self.bucket.name}") from error

    def newest(self) -> Manifest:
        """The manifest that the pointer names; without a pointer, which was lost then, the newest one there is.

        Raises ChainError when nothing is published yet.
        """
        path = layout.pointer(self.run_id)
        try:
            pointer = Pointer.from_json(self.bucket.read(path), path)
        except MissingFileError as error:
            if versions := self.versions():
                return self.manifest(versions[-1])
            raise ChainError(f"run {self.run_id!r} in bucket {self.bucket.name} has no whole version yet") from error
        if pointer.run_id != self.run_id or pointer.manifest != layout.manifest(self.run_id, pointer.version):
            raise IntegrityError(f"{path} points to {pointer.manifest} of run {pointer.run_id!r}")
        try:
            return self._read_manifest(pointer.version, pointer.manifest_xxh3)
        except MissingFileError as error:
            raise IntegrityError(f"{path} points to {pointer.manifest}, which is not in the bucket") from error

    def manifest(self, version: int) -> Manifest:
        """Raises ChainError when the bucket has no such version."""
        if version not in self._manifests:
            try:
                self._manifests[version] = self._read_manifest(version)
            except MissingFileError as error:
                raise ChainError(f"run {self.run_id!r} has no manifest of version {version}") from error
        return self._manifests[version]

    def anchor(self, version: int) -> Manifest | None:
        """The manifest of an extra anchor of this version; None when it has none.

        Raises IntegrityError unless it is an anchor of just that version and its fingerprint. A walk goes down from
        newer to older versions and lists the bucket once: when asked for a version that is not below the last one.
        """
        if version >= self._asked:
            self._listed = set(self.bucket.files(layout.manifests(self.run_id)))
        self._asked = version
        path = layout.anchor_manifest(self.run_id, version)
        if version not in self._anchors and path in self._listed:
            self._anchors[version] = self._read_anchor(version, path)
        return self._anchors.get(version)

    def versions(self) -> list[int]:
        """The numbers of all whole versions, lowest first."""
        return sorted(layout.by_version(self.bucket.files(layout.manifests(self.run_id))))

    def manifests(self) -> Iterator[Manifest]:
        """All whole versions, oldest first."""
        yield from map(self.manifest, self.versions())

    @contextmanager
    def fetched(self, manifest: Manifest) -> Iterator[list[Path]]:
        """The version's data files, downloaded to a temporary folder and equal to their content hashes."""
        with TemporaryDirectory(prefix="sync-") as folder:
            paths = [Path(folder, file.path.rsplit("/", 1)[-1]) for file in manifest.files]
            for file, path in zip(manifest.files, paths, strict=True):
                try:
                    self.bucket.download(file.path, path)
                except MissingFileError as error:
                    raise ChainError(f"version {manifest.version} cannot be had: {error}") from error
                found = (path.stat().st_size, content_hash(path))
                if found != (file.nbytes, file.content_hash):
                    raise IntegrityError(
                        f"{file.path} has (bytes, content hash) {found}, its manifest says "
                        f"{(file.nbytes, file.content_hash)}"
                    )
            yield paths

    def _read_manifest(self, version: int, expected_hash: str = "") -> Manifest:
        path = layout.manifest(self.run_id, version)
        raw = self.bucket.read(path)
        found = xxhash.xxh3_128_hexdigest(raw)
        if expected_hash and found != expected_hash:
            raise IntegrityError(f"{path} has content hash {found}, the pointer says {expected_hash}")
        return self.parsed(raw, path, version)

    def _read_anchor(self, version: int, path: str) -> Manifest:
        anchor, wanted = self.parsed(self.bucket.read(path), path, version), self.manifest(version)
        if anchor.kind != "anchor" or not anchor.files:
            raise IntegrityError(f"{path} is of kind {anchor.kind} with {len(anchor.files)} files, not a whole anchor")
        if anchor.fingerprint != wanted.fingerprint:
            raise IntegrityError(
                f"{path} has fingerprint {anchor.fingerprint}, but version {version} has {wanted.fingerprint}"
            )
        return anchor

    def parsed(self, raw: bytes, path: str, version: int) -> Manifest:
        """The manifest in `raw`. Raises IntegrityError unless it is that of this version of this run."""
        manifest = Manifest.from_json(raw, path)
        if (manifest.run_id, manifest.version) != (self.run_id, version):
            raise IntegrityError(f"{path} is the manifest of version {manifest.version} of run {manifest.run_id!r}")
        place = layout.anchors(self.run_id) if manifest.kind == "anchor" else layout.deltas(self.run_id)
        for name in (file.path for file in manifest.files):
            if name.rpartition("/")[0] != place or layout.version_of(name) != version:
                raise IntegrityError(f"{path} lists {name!r}, which is no file of {place} for version {version}")
        return manifest


def _read_run(bucket: Bucket, run_id: str) -> Run:
    return parsed_run(bucket.read(layout.run_file(run_id)), run_id)


def parsed_run(raw: bytes, run_id: str) -> Run:
    """The run in the `run.json` of a run's folder. Raises IntegrityError for any other."""
    path = layout.run_file(run_id)
    run = Run.from_json(raw, path)
    if run.run_id != run_id:
        raise IntegrityError(f"{path} is that of run {run.run_id!r}; a run's folder can be neither renamed nor copied")
    return run
