"""How long each sync held the generation up. A version's own manifest is written before that is known. Pure."""

from shared.monitor.numbers import Points, number_in, sync_series, whole_in
from shared.monitor.snapshot import Snapshot


def pauses_of(snapshot: Snapshot) -> Points:
    """Milliseconds by version: as manifests tell them, and for the newest sync what a replica says of it."""
    points = dict(sync_series(snapshot.manifests, snapshot.end, "sync/pause_ms"))
    for answer in snapshot.replicas.values():
        last = answer.document.get("last_sync")
        if isinstance(last, dict) and snapshot.run is not None and last.get("run_id") == snapshot.run.run_id:
            version, pause = whole_in(last.get("version")), number_in(last.get("pause_ms"))
            if version is not None and pause is not None:
                points.setdefault(version, pause)
    return sorted(points.items())
