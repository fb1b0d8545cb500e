"""Leaves in the bucket that training has ended, and why, so that whoever reads it need not guess from a silence."""

from collections.abc import Callable

from shared import layout
from shared.bucket import Bucket
from shared.errors import SyncError
from shared.reader import RunReader
from shared.types import End, now
from trainer_box.delivery import Sync


def note_end(bucket: Bucket, run_id: str, reason: str, last: Sync | None, report: Callable[[str], None]) -> None:
    """At the newest whole version, once: a run that goes on from there ends at a later one. `last` is the newest sync,
    whose numbers no later manifest will have. A bucket that does not take it is told and changes nothing."""
    try:
        version = RunReader(bucket, run_id).newest().version
        path = layout.end(run_id, version)
        if path not in bucket.files(layout.ends(run_id)):
            bucket.write(path, End(run_id, version, now(), reason, last.note() if last else {}).to_json())
    except SyncError as error:
        report(f"the bucket does not say that training has ended: {error}")
