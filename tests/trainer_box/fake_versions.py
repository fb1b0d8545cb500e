"""Stand-ins for publisher and Space as a delivery sees them: they do as a script says and keep what was asked."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shared.types import DataFile, Manifest, now
from tests.trainer_box.fake_space import TIMES
from trainer_box.detect import NamedTensors
from trainer_box.replica import Acknowledgement, Pending


def manifest_of(version: int, fingerprint: str = "0" * 16) -> Manifest:
    data = DataFile(f"run/anchors/step_{version:06d}.safetensors", 10, "0" * 32)
    return Manifest("run", version, "anchor", (data,), fingerprint, 5, 5, 1, now(), seconds={"diff": 0.0})


class FakePublisher:
    """Weights are one tensor of one number, which is their fingerprint. `failing` is what the next commits raise."""

    run_id = "run"

    def __init__(self, next_version: int = 0, held: Manifest | None = None) -> None:
        self.next_version = next_version
        self.held = held
        self.failing: list[BaseException | None] = []
        self.settling: list[Manifest | BaseException | None] = []
        self.diffs: list[int] = []
        self.committed: list[tuple[int, Mapping[str, Any]]] = []
        self.rebased = 0
        self.house: list[Callable[[], None]] = []
        self.looking: Callable[[], None] = lambda: None

    def adopt(self, named_tensors: NamedTensors) -> Manifest | None:
        return self.held

    def count(self, named_tensors: NamedTensors) -> str:
        ((_, tensor),) = named_tensors
        return f"{int(tensor):016x}"

    def diff(self, named_tensors: NamedTensors, *, version: int) -> Any:
        self.diffs.append(version)
        return version, self.count(named_tensors)

    def commit(self, diff: Any, trainer: Mapping[str, Any]) -> Manifest:
        version, fingerprint = diff
        self.next_version = version + 1
        if self.failing and (error := self.failing.pop(0)) is not None:
            raise error
        self.committed.append((version, trainer))
        return manifest_of(version, fingerprint)

    def housekeeping(self) -> Callable[[], None] | None:
        self.looking()
        return self.house.pop(0) if self.house else None

    def settle(self) -> Manifest | None:
        outcome = self.settling.pop(0) if self.settling else None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def rebase(self) -> None:
        self.rebased += 1


class FakeReplica:
    """`answers` come first, then every version is live at once. While `gate` is closed, nothing is answered."""

    def __init__(self, answers: Sequence[Pending | BaseException | None] = ()) -> None:
        self.answers = list(answers)
        self.announced: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def update(self, bucket: str, manifest: Manifest) -> Acknowledgement | Pending:
        assert self.gate.wait(30)
        self.announced.append(manifest.version)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer or Acknowledgement(manifest.version, **TIMES)
