"""A receiver driven as the syncer drives it, without an engine around it."""

import time
from pathlib import Path

from shared.types import Manifest
from space_vllm.outcomes import Audited, Placed, Progress, Verified
from space_vllm.receiver import Receiver

DEADLINE_S = 60.0


def settled(receiver: Receiver, deadline_s: float = DEADLINE_S) -> Progress:
    """How staging ended."""
    deadline = time.monotonic() + deadline_s
    while (progress := receiver.poll()).state == "working":
        assert time.monotonic() < deadline, "still staging"
        time.sleep(0.001)
    return progress


def staged(receiver: Receiver, manifest: Manifest, bucket: Path) -> Progress:
    receiver.stage(manifest, [bucket / file.path for file in manifest.files])
    return settled(receiver)


def sync(receiver: Receiver, manifest: Manifest, bucket: Path) -> Verified:
    """Stage, apply and verify a version. Fails unless it was placed without an error."""
    progress = staged(receiver, manifest, bucket)
    assert (progress.state, progress.error, progress.fingerprint) == ("ready", "", manifest.fingerprint)
    assert receiver.apply().error == ""
    return receiver.verify()


def undone(receiver: Receiver) -> tuple[Placed, Verified]:
    return receiver.undo(), receiver.verify()


def audited(receiver: Receiver, deadline_s: float = DEADLINE_S) -> Audited:
    """What a full recount finds."""
    deadline = time.monotonic() + deadline_s
    while (found := receiver.audit()).state == "working":
        assert time.monotonic() < deadline, "still recounting"
        time.sleep(0.001)
    return found
