"""One sync, end to end: publish a version, have the Space serve it verified, say so in one line, keep the numbers.

Knows the publisher and the replica; nothing of training, whose numbers pass through.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared import layout
from shared.bucket import Bucket
from shared.types import Json, Manifest
from trainer_box.detect import NamedTensors
from trainer_box.publisher import Publisher
from trainer_box.replica import Acknowledgement, Replica

Report = Callable[[str], None]


@dataclass(frozen=True)
class Sync:
    """A version that was published and acknowledged, and the seconds from first to last."""

    manifest: Manifest
    acknowledgement: Acknowledgement
    seconds: float

    def line(self) -> str:
        """As it is logged: `sync v42 delta 6.1 MB sparsity 0.9938 | diff 0.2s ... verified`."""
        m, ack = self.manifest, self.acknowledgement
        phases = {**m.seconds, "stage": ack.stage_ms / 1000, "pause": ack.pause_ms / 1000}
        spent = " ".join(f"{name} {seconds:.2f}s" for name, seconds in phases.items())
        return f"sync v{m.version} {m.kind} {m.nbytes / 1e6:.2f} MB sparsity {m.sparsity:.4f} | {spent} verified"

    def numbers(self) -> Json:
        m, ack = self.manifest, self.acknowledgement
        return {
            "version": m.version,
            "kind": m.kind,
            "verified": True,  # or there would be no acknowledgement
            "payload_bytes": m.nbytes,
            "changed": m.changed,
            "total": m.total,
            "sparsity": m.sparsity,
            "fingerprint": m.fingerprint,
            "stage_ms": ack.stage_ms,
            "pause_ms": ack.pause_ms,
            "apply_ms": ack.apply_ms,
            "sync_s": self.seconds,
        }


class WeightSync:
    """What the trainer calls at every sync point; it waits `deadline_s` seconds at most for the Space."""

    def __init__(
        self, bucket: Bucket, publisher: Publisher, replica: Replica, deadline_s: float, report: Report = print
    ) -> None:
        self.last: Sync | None = None
        self._bucket = bucket
        self._publisher = publisher
        self._replica = replica
        self._deadline_s = deadline_s
        self._report = report

    def __call__(self, named: NamedTensors, numbers: Json, rollouts: Sequence[Json]) -> int:
        """Raises SyncError or one of its kinds when the version is not live and verified in time."""
        started = time.perf_counter()
        manifest = self._publisher.publish(named, numbers)
        acknowledgement = self._replica.update(self._bucket.name, manifest, self._deadline_s)
        self.last = Sync(manifest, acknowledgement, time.perf_counter() - started)
        self._report(self.last.line())
        if rollouts:
            lines = "".join(json.dumps(rollout, default=str) + "\n" for rollout in rollouts)
            self._bucket.write(layout.rollouts(manifest.run_id, manifest.version), lines.encode())
        return manifest.version

    def checkpoint_state(self) -> Json:
        """Run, version and fingerprint of the newest version, for a checkpoint; the fingerprint is counted anew."""
        version = self.last.manifest.version if self.last else None
        return {"run_id": self._publisher.run_id, "version": version, "fingerprint": self._publisher.recount()}
