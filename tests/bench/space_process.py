"""A Space without vLLM, in a process of its own: fetches what is announced, verifies it and says so.

Its weights are plain tensors. It fetches from the bucket through a link as slow as the trainer's.
"""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from shared import fingerprint
from shared.bucket import open_bucket
from shared.snapshot import Snapshot
from shared.types import Manifest
from tests.bench.steps import Shapes
from tests.bench.throttled import Throttled
from tests.bench.trainee import initial
from trainer_box.replica import Acknowledgement

_STARTING_S, _ANSWER_S, _ENDING_S = 900.0, 600.0, 20.0


class SpaceProcess:
    """Holds version 0 of a `Trainee` of the same shapes. `bytes_per_s` is the speed of its link."""

    def __init__(self, connection: Connection, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._connection = connection

    def update(self, bucket: str, manifest: Manifest) -> Acknowledgement:
        """Raises TimeoutError, or AssertionError when other weights are live than the manifest's."""
        self._connection.send((bucket, manifest.to_json(), self.bytes_per_s))
        found, stage_ms, apply_ms = self._answer(_ANSWER_S)
        assert found == manifest.fingerprint, f"version {manifest.version} is live as {found}: {manifest.fingerprint}"
        return Acknowledgement(manifest.version, stage_ms, apply_ms, apply_ms)

    def held(self) -> str:
        """The fingerprint of what it starts with; to be asked once."""
        return self._answer(_STARTING_S)[0]

    def _answer(self, seconds: float) -> tuple[str, float, float]:
        if not self._connection.poll(seconds):
            raise TimeoutError(f"the Space's process does not answer within {seconds:.0f} s")
        answer: tuple[str, float, float] = self._connection.recv()
        return answer


@contextmanager
def space_process(shapes: Shapes, bytes_per_s: float) -> Iterator[SpaceProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, dict(shapes)), daemon=True)
    process.start()
    theirs.close()
    try:
        space = SpaceProcess(ours, bytes_per_s)
        yield space
    finally:
        ours.close()
        process.join(_ENDING_S)
        process.kill()


def _serve(connection: Connection, shapes: Shapes) -> None:
    """Until the other end is closed."""
    snapshot = Snapshot({name: tensor.bfloat16() for name, tensor in initial(shapes)}, 0)
    connection.send((fingerprint.to_text(snapshot.fingerprint), 0.0, 0.0))
    while True:
        try:
            bucket, raw, bytes_per_s = connection.recv()
        except EOFError:
            return
        connection.send(_sync(snapshot, bucket, Manifest.from_json(raw, "the announcement"), bytes_per_s))


def _sync(snapshot: Snapshot, bucket: str, manifest: Manifest, bytes_per_s: float) -> tuple[str, float, float]:
    with TemporaryDirectory() as folder:
        started, file = time.perf_counter(), Path(folder) / "delta"
        if manifest.files:
            Throttled(open_bucket(bucket), bytes_per_s).download(manifest.path, file)
            changes = snapshot.stage(manifest, file)
        else:
            changes = []
        staged = time.perf_counter()
    snapshot.commit(manifest.version, changes)
    applied = time.perf_counter()
    found = fingerprint.to_text(snapshot.fingerprint)
    return found, 1000 * (staged - started), 1000 * (applied - staged)
