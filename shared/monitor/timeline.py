"""What the last syncs took: phases beside the rollouts, and the pause, in which nothing was generated. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.monitor.numbers import number_in, sync_series
from shared.monitor.pauses import pauses_of
from shared.monitor.snapshot import Snapshot
from shared.monitor.words import duration, size
from shared.types import Json, Manifest

SHOWN = 10
PHASES = ("diff", "encode", "upload", "stage", "pause")
CAPTION = (
    "Diff holds the next training step up; encode, upload and stage run beside training and rollouts; "
    "in the pause, in red, no token is generated."
)


@dataclass(frozen=True)
class Sync:
    """Seconds by phase; a phase that is not known yet is left out."""

    manifest: Manifest
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def syncs(snapshot: Snapshot) -> list[Sync]:
    """The newest, newest first."""
    pauses = dict(pauses_of(snapshot))
    stages = dict(sync_series(snapshot.manifests, snapshot.end, "sync/stage_ms"))
    found = []
    for manifest in reversed(snapshot.manifests[-SHOWN:]):
        told = {name: number_in(manifest.seconds.get(name)) for name in PHASES}
        phases = {name: max(seconds, 0.0) for name, seconds in told.items() if seconds is not None}
        for name, known in (("stage", stages), ("pause", pauses)):
            if manifest.version in known:
                phases[name] = max(known[manifest.version], 0.0) / 1000
        found.append(Sync(manifest, phases))
    return found


def rows(snapshot: Snapshot) -> list[Json]:
    """One for each sync: its version, kind, payload and total, and segments with a share of the longest in percent."""
    shown = syncs(snapshot)
    longest = max((sync.total for sync in shown), default=0.0) or 1.0
    return [_row(sync, longest) for sync in shown]


def _row(sync: Sync, longest: float) -> Json:
    manifest = sync.manifest
    return {
        "version": f"v{manifest.version}",
        "kind": manifest.kind,
        "payload": size(manifest.nbytes) if manifest.files else "by reference",
        "total": duration(sync.total),
        "words": ", ".join(f"{name} {duration(seconds)}" for name, seconds in sync.seconds.items()),
        "segments": [
            {"name": name, "width": f"{100 * seconds / longest:.2f}"} for name, seconds in sync.seconds.items()
        ],
    }
