"""Anchors beside the chain, and what may be deleted once there are newer ones.

A receiver that joins has to fetch an anchor and all deltas since. When these have grown to more than the model, and to
more than 64 MB, or to 256 files, the newest version gets an anchor as another representation: at worst a receiver
fetches the model, as much again or 64 MB, and the deltas that come while an anchor is uploaded. One that fails is
tried again after 1, 2, 4, ... more versions: it comes at the latest when the chain has grown by twice what it grew by
while anchors failed.

The chains that start at the newest two anchors are kept, so that a receiver which has just begun with the older one
finds it all. Older data goes, and so does that of versions which never became whole, but for the last one tried.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from shared import layout
from shared.bucket import Bucket
from shared.errors import ChainError, IntegrityError, SyncError
from shared.reader import RunReader
from shared.snapshot import Snapshot
from shared.types import Manifest
from trainer_box.encode import Files, encode_anchor, plain_bytes
from trainer_box.writer import Writer

Work = Callable[[], None]

_LOG = logging.getLogger(__name__)
_KEPT_CHAINS = 2
MOST_DELTAS = 256
LEAST_BYTES = 64_000_000


def delete_old_data(bucket: Bucket, run_id: str, tried: int) -> None:
    """Delete what no receiver needs; `tried` is the last number that was. Manifests and rollouts stay.

    Raises BucketError.
    """
    reader, stored = RunReader(bucket, run_id), bucket.files(layout.anchors(run_id))
    data = layout.by_version([*stored, *bucket.files(layout.deltas(run_id))])
    kept = _newest_anchors(reader, stored)
    oldest = kept[-1] if len(kept) == _KEPT_CHAINS else 0
    unlisted = data.keys() - set(reader.versions())
    lost = {version for version in unlisted if version < tried and _is_lost(reader, version)}
    if old := [path for version, paths in data.items() if version < oldest or version in lost for path in paths]:
        bucket.delete(old)


def _newest_anchors(reader: RunReader, stored: Collection[str]) -> list[int]:
    """Versions of the newest anchors that have all their files, newest first."""
    found = list[int]()
    for version in sorted(layout.by_version(stored), reverse=True):
        if len(found) < _KEPT_CHAINS and _is_start(reader, version, stored):
            found.append(version)
    return found


def _is_start(reader: RunReader, version: int, stored: Collection[str]) -> bool:
    """Whether a receiver can start at this version, by its own files or an extra anchor's."""
    try:
        step = reader.manifest(version)
        anchor = step if step.kind == "anchor" and step.files else reader.anchor(version)
    except (ChainError, IntegrityError):
        return False
    return anchor is not None and {file.path for file in anchor.files} <= set(stored)


def _is_lost(reader: RunReader, version: int) -> bool:
    """Whether there is no manifest. Asked by name, because a list may be late."""
    try:
        reader.manifest(version)
    except ChainError:
        return True
    except IntegrityError:
        return False
    return False


def _sizes_since_anchor(reader: RunReader, newest: Manifest, stored: Collection[str]) -> list[int]:
    """Bytes of the deltas up to `newest`, and as many numbers as make an anchor due where none is before them."""
    sizes, step = list[int](), newest
    try:
        while len(sizes) < MOST_DELTAS and not _is_start(reader, step.version, stored):
            if step.base_version is None:
                return sizes if not step.files else [0] * MOST_DELTAS
            sizes.append(step.nbytes)
            step = reader.manifest(step.base_version)
    except (ChainError, IntegrityError):
        return [0] * MOST_DELTAS
    return sizes


@dataclass
class _Chain:
    """The deltas since an anchor was published. `again` is how many there are when one that failed is tried again.

    `adopted` is the version that another publisher left, while what leads to it is not counted.
    """

    adopted: Manifest | None = None
    sizes: list[int] = field(default_factory=list)
    again: int = 0
    pause: int = 1

    def needs_anchor(self, model_bytes: int) -> bool:
        is_long = len(self.sizes) >= MOST_DELTAS or sum(self.sizes) > max(LEAST_BYTES, model_bytes)
        return is_long and len(self.sizes) >= self.again

    def postpone(self) -> None:
        self.again, self.pause = len(self.sizes) + self.pause, 2 * self.pause

    def start_after(self, count: int) -> None:
        """An anchor has been published that has these deltas in it."""
        del self.sizes[:count]
        self.again, self.pause = 0, 1


class Housekeeping:
    """What is done beside the chain after a version was published. Nothing depends on it: a failure is logged."""

    def __init__(self, bucket: Bucket, run_id: str, writer: Writer, shard_bytes: int) -> None:
        self._bucket = bucket
        self._run_id = run_id
        self._writer = writer
        self._shard_bytes = shard_bytes
        self._chain = _Chain()
        self._tried = -1
        self._is_due = False

    def adopt(self, newest: Manifest) -> None:
        """The chain goes on from a version that another publisher left."""
        self._chain = _Chain(newest)

    def note(self, manifest: Manifest) -> None:
        """A version became whole."""
        self._tried = manifest.version
        if manifest.kind == "anchor":
            self._is_due, self._chain = True, _Chain()
        else:
            self._chain.sizes.append(manifest.nbytes)

    def note_lost(self, version: int) -> None:
        """A version did not become whole; some of its data may be in the bucket."""
        self._tried, self._is_due = version, True

    def work(self, manifest: Manifest | None, snapshot: Snapshot | None) -> Work | None:
        """What is due, to be called on any thread; the weights of the version may change meanwhile."""
        if manifest is not None and snapshot is not None:
            if self._chain.adopted is not None:
                return partial(self._count, self._chain, self._chain.adopted)
            if self._chain.needs_anchor(plain_bytes(snapshot)):
                return self._anchor(manifest, snapshot)
        return partial(self._tidy, self._tried) if self._is_due else None

    def _count(self, chain: _Chain, adopted: Manifest) -> None:
        with _logged("the count of the deltas since the last anchor"):
            reader = RunReader(self._bucket, self._run_id)
            chain.sizes[:0] = _sizes_since_anchor(reader, adopted, self._bucket.files(layout.anchors(self._run_id)))
            chain.adopted = None

    def _anchor(self, manifest: Manifest, snapshot: Snapshot) -> Work | None:
        what, chain = f"an extra anchor of version {manifest.version}", self._chain
        count = len(chain.sizes)
        chain.postpone()  # which is over when this one gets there
        with _logged(what), ExitStack() as stack:
            folder = stack.enter_context(self._writer.folder())
            files = encode_anchor(self._run_id, snapshot, self._shard_bytes, Path(folder))
            data = tuple(data for data, _ in files)
            anchor = replace(manifest, kind="anchor", files=data, base_version=None, base_fingerprint=None)
            return partial(self._upload, what, stack.pop_all(), files, anchor, partial(chain.start_after, count))
        return None

    def _upload(self, what: str, folder: ExitStack, files: Files, anchor: Manifest, done: Work) -> None:
        with _logged(what), folder:
            self._writer.upload(files)
            self._writer.announce_anchor(anchor)
            done()
            self._tidy(anchor.version)

    def _tidy(self, tried: int) -> None:
        self._is_due = False
        with _logged("the deletion of old data"):
            self._writer.check_alone()
            delete_old_data(self._bucket, self._run_id, tried)
            return
        self._is_due = True  # again, as that failed


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except (SyncError, OSError) as error:
        _LOG.warning("%s failed and is left to the next time: %s", what, error)
