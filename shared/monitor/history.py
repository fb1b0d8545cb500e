"""One run of a bucket, read bit by bit: what never changes is read once, many files in one call.

Knows what lies where, and when to look again. A file that is not what it should be is told beside the others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from shared import layout, strict_json
from shared.bucket import LOCAL, Bucket
from shared.errors import IntegrityError, SyncError
from shared.monitor.again import Again
from shared.monitor.snapshot import Snapshot
from shared.reader import RunReader
from shared.types import End, Json, Manifest, Pointer, Run

BATCH = 500
KEPT_ROLLOUTS = 100
NEWEST_ROLLOUTS = 12
LIST_PERIOD_S = 120.0
"""How often the Hub is asked for lists, each thousand files a call: of what the pointer does not lead to."""
_AWAITED = 3
"""Versions whose rollouts may still come."""

Parsed = TypeVar("Parsed")


class History:
    """`is_new` before the first look, `is_behind` while there are more manifests to read than one look does. `problem`
    says why the bucket could not be read; what was read before stays."""

    def __init__(self, bucket: Bucket, run: Run) -> None:
        self.run = run
        self.is_new, self.is_behind = True, False
        self.problem = ""
        self._bucket = bucket
        self._reader = RunReader(bucket, run.run_id)
        self._list_period_s = 0.0 if bucket.name.startswith(LOCAL) else LIST_PERIOD_S
        self._list_at = 0.0
        self._pointer = b""
        self._news: dict[str, bytes] = {}
        self._listed: frozenset[int] = frozenset()
        self._manifests: dict[int, Manifest] = {}
        self._in_order: tuple[Manifest, ...] = ()
        self._extra_anchors: dict[int, Manifest] = {}
        self._stored: frozenset[str] = frozenset()
        self._rollout_versions: tuple[int, ...] = ()
        self._rollouts: dict[int, tuple[Json, ...]] = {}
        self._end: End | None = None
        self._again = Again()

    def look(self, now: float, wanted: Sequence[int] = ()) -> None:
        """Reads what is new at `now` (seconds of any clock), and the rollouts of `wanted` versions, the most wanted
        last."""
        self.is_new = False
        self.problem = self._problem_of(lambda: self._look(now, wanted))

    def read_on(self, now: float, wanted: Sequence[int] = ()) -> None:
        """As `look`, but of what is known to be there already."""
        self.problem = self._problem_of(lambda: self._read_on(now, wanted)) or self.problem

    def written_on(self, snapshot: Snapshot) -> Snapshot:
        return replace(
            snapshot,
            run=self.run,
            manifests=self._in_order,
            unread=sum(not self._again.is_damaged(self._manifest(version)) for version in self._unread()),
            extra_anchors=dict(self._extra_anchors),
            stored=self._stored,
            rollout_versions=self._rollout_versions,
            rollouts=dict(self._rollouts),
            end=self._end,
            problem=self.problem,
            damaged=tuple(self._again.problems()),
        )

    def _problem_of(self, read: Callable[[], None]) -> str:
        """Where there is one, nothing more is read at once."""
        self.is_behind = False
        try:
            read()
        except SyncError as error:
            return str(error)
        return ""

    def _look(self, now: float, wanted: Sequence[int]) -> None:
        self._read_news(now)
        if now >= self._list_at:
            self._list(now)
            self._list_at = now + self._list_period_s
        self._read_on(now, wanted)

    def _read_on(self, now: float, wanted: Sequence[int]) -> None:
        self._read_manifests(now)
        self._read_rollouts(now, wanted)
        self.is_behind = bool(self._due(now))

    def _read_news(self, now: float) -> None:
        """The pointer, and in the same call what comes a while after the newest versions."""
        pointer = layout.pointer(self.run.run_id)
        ends, rollouts = self._awaited_ends(), self._awaited_rollouts()
        awaited = [path for path in (*ends, *rollouts) if self._again.is_due(path, now)]
        self._news = self._bucket.read_all([pointer, *awaited])
        came = {version for path, version in rollouts.items() if path in self._news}
        self._rollout_versions = tuple(sorted({*self._rollout_versions, *came}))
        for version in (version for path, version in ends.items() if path in self._news):
            self._read_end(version, now)
        self._follow(self._news.get(pointer, b""), now)

    def _awaited_ends(self) -> dict[str, int]:
        versions = [manifest.version for manifest in self._in_order[-1:]]
        known = self._end.version if self._end else None
        return {layout.end(self.run.run_id, version): version for version in versions if version != known}

    def _awaited_rollouts(self) -> dict[str, int]:
        versions = [manifest.version for manifest in self._in_order[-_AWAITED:]]
        known = self._rollout_versions[-_AWAITED:]
        return {layout.rollouts(self.run.run_id, version): version for version in versions if version not in known}

    def _follow(self, pointer: bytes, now: float) -> None:
        """Where the pointer has moved a little, the versions on its way are read by their names, without a list."""
        if pointer == self._pointer:
            return
        target, newest = self._target(pointer), max(self._listed, default=None)
        if target is None or newest is None or not 0 < target - newest <= BATCH:
            self._list_at = 0.0
        else:
            found = self._parsed(range(newest + 1, target + 1), layout.manifest, self._reader.parsed, now)
            self._add(found)
            self._listed |= {*found, target}
            self._stored |= {file.path for manifest in found.values() for file in manifest.files}
            if any(manifest.kind == "anchor" for manifest in found.values()):
                self._list_at = 0.0  # then data is deleted
        self._pointer = pointer

    def _target(self, pointer: bytes) -> int | None:
        with suppress(IntegrityError):
            return Pointer.from_json(pointer, layout.pointer(self.run.run_id)).version
        return None

    def _list(self, now: float) -> None:
        run_id, files = self.run.run_id, self._bucket.files
        manifests, rollouts = files(layout.manifests(run_id)), files(layout.rollout_folder(run_id))
        ends = files(layout.ends(run_id))
        self._again.keep({*manifests, *rollouts, *ends})
        self._listed = frozenset(layout.by_version(manifests))
        self._stored = frozenset([*files(layout.anchors(run_id)), *files(layout.deltas(run_id))])
        self._rollout_versions = tuple(sorted(_numbers(rollouts, ".jsonl")))
        extra = [version for version in _numbers(manifests, ".anchor.json") if version not in self._extra_anchors]
        self._extra_anchors |= self._parsed(extra, layout.anchor_manifest, self._reader.parsed, now)
        if numbers := layout.by_version(ends):
            self._read_end(max(numbers), now)
        else:
            self._end = None  # the run goes on

    def _read_end(self, version: int, now: float) -> None:
        if self._end is None or self._end.version != version:
            found = self._parsed([version], layout.end, lambda raw, path, _: End.from_json(raw, path), now)
            self._end = found.get(version, self._end)

    def _manifest(self, version: int) -> str:
        return layout.manifest(self.run.run_id, version)

    def _unread(self) -> Iterator[int]:
        return (version for version in self._listed if version not in self._manifests)

    def _due(self, now: float) -> list[int]:
        """Those of them to read now, the newest first."""
        return sorted((v for v in self._unread() if self._again.is_due(self._manifest(v), now)), reverse=True)

    def _read_manifests(self, now: float) -> None:
        if batch := self._due(now)[:BATCH]:
            found = self._parsed(batch, layout.manifest, self._reader.parsed, now)
            self._add(found)
            for path in (self._manifest(version) for version in batch if version not in found):
                if not self._again.is_damaged(path):  # it is listed, but not there
                    self._again.failed(path, "", now)

    def _add(self, manifests: dict[int, Manifest]) -> None:
        self._manifests |= manifests
        self._in_order = tuple(manifest for _, manifest in sorted(self._manifests.items()))

    def _read_rollouts(self, now: float, wanted: Sequence[int]) -> None:
        listed = self._rollout_versions
        chosen = [*(version for version in wanted if version in listed), *listed[-NEWEST_ROLLOUTS:]]
        versions = list(dict.fromkeys(reversed(chosen)))[:KEPT_ROLLOUTS][::-1]
        unread = [version for version in versions if version not in self._rollouts]
        self._rollouts |= self._parsed(unread, layout.rollouts, lambda raw, path, _: _rollouts(raw, path), now)
        for version in (version for version in versions if version in self._rollouts):
            self._rollouts[version] = self._rollouts.pop(version)  # the least recently used are the first
        for version in list(self._rollouts)[:-KEPT_ROLLOUTS]:
            del self._rollouts[version]

    def _parsed(
        self,
        versions: Iterable[int],
        path_of: Callable[[str, int], str],
        parse: Callable[[bytes, str, int], Parsed],
        now: float,
    ) -> dict[int, Parsed]:
        """The files of these versions that are there and sound; those that were not are left alone for a while."""
        every = {path_of(self.run.run_id, version): version for version in versions}
        paths = {path: version for path, version in every.items() if self._again.is_due(path, now)}
        found = {}
        for path, raw in self._read(list(paths)).items():
            try:
                found[paths[path]] = parse(raw, path, paths[path])
                self._again.mended(path)
            except IntegrityError as error:
                self._again.failed(path, str(error), now)
        return found

    def _read(self, paths: list[str]) -> dict[str, bytes]:
        here = {path: self._news.pop(path) for path in paths if path in self._news}
        missing = [path for path in paths if path not in here]
        return here | (self._bucket.read_all(missing) if missing else {})


def _numbers(paths: Iterable[str], ending: str) -> Iterator[int]:
    """Of files that are named by a version and an ending."""
    for path in paths:
        name = path.rpartition("/")[2]
        if name.endswith(ending) and (version := layout.version_of(name.removesuffix(ending) + ".json")) is not None:
            yield version


def _rollouts(raw: bytes, path: str) -> tuple[Json, ...]:
    """A line that is not strict JSON is left out."""
    lines = [line for line in raw.splitlines() if line.strip()]
    found = list(_objects(lines))
    if lines and not found:
        raise IntegrityError(f"{path} has no line that is a JSON object")
    return tuple(found)


def _objects(lines: Iterable[bytes]) -> Iterator[Json]:
    for line in lines:
        with suppress(ValueError):
            value = strict_json.parse(line)
            if isinstance(value, dict):
                yield value
