"""One run of a bucket, read bit by bit: what never changes is read once, many files in one call.

Knows what lies where, and when to look again. A file that is not what it should be is told beside the others.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from shared import layout, strict_json
from shared.bucket import LOCAL, Bucket
from shared.errors import IntegrityError, MissingFileError
from shared.monitor.snapshot import Snapshot
from shared.reader import RunReader
from shared.types import End, Json, Manifest, Run

BATCH = 500
KEPT_ROLLOUTS = 100
NEWEST_ROLLOUTS = 12
LIST_PERIOD_S = 30.0
"""How often the Hub is asked for lists while the pointer stays; each thousand files is a call."""

Parsed = TypeVar("Parsed")


class History:
    """`is_behind` while there are more manifests to read than one `look` does."""

    def __init__(self, bucket: Bucket, run: Run) -> None:
        self.run = run
        self.is_behind = True
        self._bucket = bucket
        self._reader = RunReader(bucket, run.run_id)
        self._list_period_s = 0.0 if bucket.name.startswith(LOCAL) else LIST_PERIOD_S
        self._list_at = 0.0
        self._pointer: bytes | None = None
        self._listed: frozenset[int] = frozenset()
        self._manifests: dict[int, Manifest] = {}
        self._in_order: tuple[Manifest, ...] = ()
        self._extra_anchors: dict[int, Manifest] = {}
        self._stored: frozenset[str] = frozenset()
        self._rollout_versions: tuple[int, ...] = ()
        self._rollouts: dict[int, tuple[Json, ...]] = {}
        self._end: End | None = None
        self._damaged: dict[str, str] = {}

    def look(self, now: float, wanted: Collection[int] = ()) -> None:
        """Reads what is new at `now` (seconds of any clock), and the rollouts of `wanted` versions. Raises BucketError
        when the bucket cannot be read; what was read before stays."""
        if self._has_moved() or now >= self._list_at:
            self._list()
            self._list_at = now + self._list_period_s
        self._read_manifests()
        self._read_rollouts(wanted)

    def written_on(self, snapshot: Snapshot) -> Snapshot:
        return replace(
            snapshot,
            run=self.run,
            manifests=self._in_order,
            unread=len(self._unread()),
            extra_anchors=dict(self._extra_anchors),
            stored=self._stored,
            rollout_versions=self._rollout_versions,
            rollouts=dict(self._rollouts),
            end=self._end,
            damaged=tuple(self._damaged.values()),
        )

    def _has_moved(self) -> bool:
        before = self._pointer
        try:
            self._pointer = self._bucket.read(layout.pointer(self.run.run_id))
        except MissingFileError:
            self._pointer = b""
        if self._pointer != before:
            self._list_at = 0.0  # once more at the next look: rollouts come a moment after their version
            return True
        return False

    def _list(self) -> None:
        run_id, files = self.run.run_id, self._bucket.files
        manifests = files(layout.manifests(run_id))
        self._listed = frozenset(layout.by_version(manifests))
        self._stored = frozenset([*files(layout.anchors(run_id)), *files(layout.deltas(run_id))])
        self._rollout_versions = tuple(sorted(_numbers(files(layout.rollout_folder(run_id)), ".jsonl")))
        extra = [version for version in _numbers(manifests, ".anchor.json") if version not in self._extra_anchors]
        self._extra_anchors |= self._parsed(extra, layout.anchor_manifest, self._reader.parsed)
        if ends := layout.by_version(files(layout.ends(run_id))):
            self._read_end(max(ends))
        else:
            self._end = None  # the run goes on

    def _read_end(self, version: int) -> None:
        if self._end is None or self._end.version != version:
            found = self._parsed([version], layout.end, lambda raw, path, _: End.from_json(raw, path))
            self._end = found.get(version, self._end)

    def _unread(self) -> list[int]:
        """Newest first."""
        known = self._manifests.keys()
        unread = (version for version in self._listed if version not in known)
        return sorted((v for v in unread if layout.manifest(self.run.run_id, v) not in self._damaged), reverse=True)

    def _read_manifests(self) -> None:
        if batch := self._unread()[:BATCH]:
            self._manifests |= self._parsed(batch, layout.manifest, self._reader.parsed)
            self._in_order = tuple(manifest for _, manifest in sorted(self._manifests.items()))
        self.is_behind = bool(self._unread())

    def _read_rollouts(self, wanted: Collection[int]) -> None:
        listed = self._rollout_versions
        versions = [version for version in listed if version in wanted or version in listed[-NEWEST_ROLLOUTS:]]
        unread = [version for version in versions if version not in self._rollouts]
        self._rollouts |= self._parsed(unread, layout.rollouts, lambda raw, path, _: tuple(_rollouts(raw, path)))
        for version in list(self._rollouts)[:-KEPT_ROLLOUTS]:
            del self._rollouts[version]

    def _parsed(
        self,
        versions: Iterable[int],
        path_of: Callable[[str, int], str],
        parse: Callable[[bytes, str, int], Parsed],
    ) -> dict[int, Parsed]:
        """The files of these versions that are there and sound."""
        every = {path_of(self.run.run_id, version): version for version in versions}
        paths = {path: version for path, version in every.items() if path not in self._damaged}
        found = {}
        for path, raw in (self._bucket.read_all(list(paths)) if paths else {}).items():
            try:
                found[paths[path]] = parse(raw, path, paths[path])
            except IntegrityError as error:
                self._damaged[path] = str(error)
        return found


def _numbers(paths: Iterable[str], ending: str) -> Iterator[int]:
    """Of files that are named by a version and an ending."""
    for path in paths:
        name = path.rpartition("/")[2]
        if name.endswith(ending) and (version := layout.version_of(name.removesuffix(ending) + ".json")) is not None:
            yield version


def _rollouts(raw: bytes, path: str) -> Iterator[Json]:
    for line in raw.splitlines():
        try:
            rollout = strict_json.parse(line)
        except ValueError as error:
            raise IntegrityError(f"{path} has a line that is not JSON: {error}") from error
        if isinstance(rollout, dict):
            yield rollout
