"""Leaves in the bucket that training has ended, and why, so that whoever reads it need not guess from a silence."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from shared import layout
from shared.bucket import Bucket
from shared.errors import SyncError
from shared.reader import RunReader
from shared.types import End, now
from trainer_box.delivery import Sync

INTERRUPTED = "it was interrupted"
_MOST_LETTERS = 500


class Ending:
    """A context around training: a run that goes on has not ended, and whatever ends it is noted with its reason.

    `reason` is to be set where no error tells it. `last` gives the newest sync, whose numbers no later manifest will
    have. A bucket that does not take it is told and changes nothing.
    """

    def __init__(self, bucket: Bucket, run_id: str, report: Callable[[str], None]) -> None:
        self.reason = ""
        self.last: Callable[[], Sync | None] = lambda: None
        self._bucket = bucket
        self._run_id = run_id
        self._report = report

    def __enter__(self) -> Self:
        try:
            self._forget()
        except SyncError as error:
            self._report(f"the bucket still says that training has ended: {error}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._note(self.reason if error is None else _reason(error))
        except SyncError as problem:
            self._report(f"the bucket does not say that training has ended: {problem}")

    def _forget(self) -> None:
        """Ends of older versions tell of sessions before, and stay."""
        if noted := self._bucket.files(layout.ends(self._run_id)):
            newest = layout.end(self._run_id, RunReader(self._bucket, self._run_id).newest().version)
            self._bucket.delete([path for path in noted if path == newest])

    def _note(self, reason: str) -> None:
        reader, last = RunReader(self._bucket, self._run_id), self.last()
        if not reader.versions():
            return  # nothing was trained
        version = reader.newest().version
        end = End(self._run_id, version, now(), reason, last.note() if last else {})
        self._bucket.write(layout.end(self._run_id, version), end.to_json(), replace=True)


def _reason(error: BaseException) -> str:
    """One line, without what another program's error may quote."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, OSError):
        return f"the disk or the network of the trainer failed ({error.strerror or type(error).__name__})"
    if not isinstance(error, SyncError):
        return f"the trainer failed ({type(error).__name__})"
    return " ".join(str(error).split())[:_MOST_LETTERS]
