"""What messages ask the reconciler for, and what the bucket says of it. Plain data."""

from dataclasses import dataclass, field

from shared.errors import SyncError
from shared.types import Manifest, Run


class OlderRunError(SyncError):
    """A message for a run that was created before the one that is followed."""


@dataclass(eq=False)
class Request:
    """A version that somebody wants, and where they say it lies. Once answered, `error` says why it is not served.

    `run` is what the bucket says of the run, once that was asked.
    """

    run_id: str
    version: int
    path: str
    run: Run | None = None
    is_answered: bool = False
    error: SyncError | None = None


@dataclass(frozen=True)
class Target:
    """A whole version in the bucket, and who asked for it."""

    run: Run
    manifest: Manifest
    requests: tuple[Request, ...] = field(default=(), compare=False)

    @property
    def age(self) -> tuple[str, str, int]:
        return (*self.run.age, self.manifest.version)
