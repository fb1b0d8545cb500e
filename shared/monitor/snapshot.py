"""What the monitor knew at one moment: a run as the bucket tells it, and what the units said of themselves.

Plain data. Knows neither where it was read nor how it is shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shared.monitor.units import Answer
from shared.types import End, Json, Manifest, Run


@dataclass(frozen=True)
class Snapshot:
    """`number` is 0 before the first look and another one after each change.

    `runs` are all of the bucket, the newest first; the rest is of `run`. Manifests are in the order of their versions,
    and `unread` of them are still to come. `stored` are the data files that the bucket has now, `extra_anchors` the
    anchors beside the chain, by version. `rollout_versions` have rollouts; those of some are in `rollouts`.
    `unreadable` tells of folders whose run cannot be read. `pinned` is the one run that is shown, if it is set, even
    if it is not there, and `others` are then those that it leaves out.
    `problem` says why the bucket could not be read: all else is then the last that could be. `damaged` tells of files
    that are not what they should be. `arrived_at` is when the newest version came, by our own clock; None for one that
    was there at the first look. The units have no answer while nobody looks; `asked` are the replicas' names.
    """

    bucket: str
    number: int = 0
    runs: tuple[Run, ...] = ()
    run: Run | None = None
    manifests: tuple[Manifest, ...] = ()
    unread: int = 0
    extra_anchors: Mapping[int, Manifest] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()
    rollout_versions: tuple[int, ...] = ()
    rollouts: Mapping[int, tuple[Json, ...]] = field(default_factory=dict)
    end: End | None = None
    problem: str = ""
    damaged: tuple[str, ...] = ()
    arrived_at: datetime | None = None
    asked: tuple[str, ...] = ()
    replicas: Mapping[str, Answer] = field(default_factory=dict)
    environment: Answer | None = None
    unreadable: tuple[str, ...] = ()
    pinned: str = ""
    others: tuple[str, ...] = ()

    @property
    def newest(self) -> Manifest | None:
        return self.manifests[-1] if self.manifests else None

    @property
    def has_ended(self) -> bool:
        """A run that went on after its end has a newer version than that."""
        if self.end is None or self.newest is None or self.end.run_id != self.newest.run_id:
            return False
        return self.end.version >= self.newest.version
