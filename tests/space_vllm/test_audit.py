"""A recount goes on across syncs, steps aside for them, and names what is not as verified."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch

from shared import fingerprint
from shared.bits import bits, spec_of
from shared.changes import Change
from shared.errors import IntegrityError
from shared.types import Manifest, TensorSpec
from space_vllm.audit import Audit
from space_vllm.outcomes import Audited, Verified
from space_vllm.placement import Weights
from space_vllm.receiver import Receiver
from tests.space_vllm.driving import audited, settled, staged, sync, undone
from tests.space_vllm.fakes import DictModel, DictPlaces, make_weights, publisher

FIRST, SECOND, THIRD = make_weights(1)
DEADLINE_S = 10.0


class GatedModel(DictModel):
    """Counting the second tensor waits for `gate`; `counted` are the tensors whose count came to its end."""

    def __init__(self) -> None:
        super().__init__(make_weights(1))
        self.gate, self.reached = Event(), Event()
        self.counted: list[str] = []
        self.gate.set()

    def find(self, tensors: object) -> "GatedPlaces":
        return GatedPlaces(self)


class GatedPlaces(DictPlaces):
    def __init__(self, model: GatedModel) -> None:
        super().__init__(model)
        self._gated = model

    def count(self, spec: TensorSpec, stopped: Callable[[], bool]) -> int | None:
        deadline = time.monotonic() + DEADLINE_S
        while spec.name == SECOND and not stopped() and not self._gated.gate.wait(0.005):
            self._gated.reached.set()
            assert time.monotonic() < deadline, "nobody opened the gate"
        term = super().count(spec, stopped)
        if term is not None:
            self._gated.counted.append(spec.name)
        return term


@pytest.fixture
def model() -> GatedModel:
    return GatedModel()


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def audit(model: GatedModel) -> Audit:
    return Audit(GatedPlaces(model), specs(model.live))


def specs(weights: Weights) -> dict[str, TensorSpec]:
    return {name: spec_of(name, tensor) for name, tensor in weights.items()}


def terms(weights: Weights) -> dict[str, int]:
    return {name: fingerprint.tensor(spec_of(name, tensor), bits(tensor)) for name, tensor in weights.items()}


def run(audit: Audit, thread: ThreadPoolExecutor) -> None:
    """Until it ends or was stopped."""
    audit.proceed(thread)
    thread.submit(lambda: None).result(DEADLINE_S)


def test_a_count_of_what_is_right_differs_in_nothing(
    audit: Audit, model: GatedModel, thread: ThreadPoolExecutor
) -> None:
    assert not audit.is_done
    run(audit, thread)
    assert audit.is_done
    assert audit.differing(terms(model.live)) == []
    assert model.counted == [FIRST, SECOND, THIRD]


def test_each_tensor_with_a_flipped_bit_is_named(audit: Audit, model: GatedModel, thread: ThreadPoolExecutor) -> None:
    right = terms(model.live)
    bits(model.live[THIRD])[2] ^= 1
    bits(model.live[FIRST])[-1] ^= -0x8000
    run(audit, thread)
    assert audit.differing(right) == sorted([FIRST, THIRD])


@pytest.mark.parametrize("error", [IntegrityError("no such values"), RuntimeError("out of memory")])
def test_what_cannot_be_counted_or_checked_is_named_and_the_rest_is_counted(
    audit: Audit, model: GatedModel, thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def count(self: DictPlaces, spec: TensorSpec, stopped: Callable[[], bool]) -> int | None:
        if spec.name == FIRST:
            raise error
        return fingerprint.tensor(spec, bits(model.live[spec.name]))

    def check(self: DictPlaces) -> None:
        raise type(error)("the padding cannot be read")

    monkeypatch.setattr(GatedPlaces, "count", count)
    monkeypatch.setattr(GatedPlaces, "check", check)
    run(audit, thread)
    audit.stop()
    assert audit.is_done
    assert audit.differing(terms(model.live)) == sorted([FIRST, "the padding cannot be read"])


def test_a_stopped_count_goes_on_where_it_was(audit: Audit, model: GatedModel, thread: ThreadPoolExecutor) -> None:
    model.gate.clear()
    audit.proceed(thread)
    assert model.reached.wait(DEADLINE_S)
    audit.stop()
    assert (model.counted, audit.is_done) == ([FIRST], False)
    model.gate.set()
    run(audit, thread)
    assert model.counted == [FIRST, SECOND, THIRD]
    assert audit.is_done


def test_proceeding_twice_counts_once(audit: Audit, model: GatedModel, thread: ThreadPoolExecutor) -> None:
    model.gate.clear()
    audit.proceed(thread)
    assert model.reached.wait(DEADLINE_S)
    audit.proceed(thread)
    model.gate.set()
    run(audit, thread)
    assert model.counted == [FIRST, SECOND, THIRD]


def test_stopping_what_never_began_is_nothing(audit: Audit) -> None:
    audit.stop()
    assert not audit.is_done


def test_what_was_counted_follows_a_change_and_what_was_not_is_counted_with_it(
    audit: Audit, model: GatedModel, thread: ThreadPoolExecutor
) -> None:
    model.gate.clear()
    audit.proceed(thread)
    assert model.reached.wait(DEADLINE_S)
    audit.stop()
    changes = []
    for name in (FIRST, THIRD):
        places = torch.tensor([1, 5])
        old = bits(model.live[name])[places]
        changes.append(Change(spec_of(name, model.live[name]), places, old, old ^ 3))
        model.write(name, places, old ^ 3)
    audit.follow(changes)
    model.gate.set()
    run(audit, thread)
    assert audit.differing(terms(model.live)) == []
    assert sorted(audit.differing(terms(make_weights(1)))) == sorted([FIRST, THIRD])


@pytest.fixture
def receiver(model: GatedModel) -> Receiver:
    """Joined; a recount of it has counted the first tensor and waits before the second."""
    receiver = Receiver(model)
    receiver.join()
    assert settled(receiver).state == "ready"
    model.counted.clear()
    model.gate.clear()
    assert receiver.audit() == Audited("working")
    assert model.reached.wait(DEADLINE_S)
    return receiver


@pytest.fixture
def versions(tmp_path: Path) -> list[Manifest]:
    """What the model has, a delta, and another publisher's anchor."""
    with publisher(tmp_path, "run") as out:
        found = [out.publish(make_weights(1, step).items()) for step in range(2)]
    with publisher(tmp_path, "run") as out:
        return [*found, out.publish(make_weights(2).items())]


def test_a_recount_that_is_half_way_follows_a_delta(
    receiver: Receiver, model: GatedModel, versions: list[Manifest], tmp_path: Path
) -> None:
    assert sync(receiver, versions[1], tmp_path) == Verified(versions[1].fingerprint)
    assert model.counted == [FIRST]
    model.gate.set()
    assert audited(receiver) == Audited("done")
    assert model.counted == [FIRST, SECOND, THIRD]


def test_staging_steps_in_within_a_piece_and_a_recount_goes_on_after_an_undo(
    receiver: Receiver, model: GatedModel, versions: list[Manifest], tmp_path: Path
) -> None:
    assert staged(receiver, versions[1], tmp_path).state == "ready"
    assert model.counted == [FIRST], "the gate is shut: only the stop can have ended the second tensor's count"
    assert receiver.apply().error == ""
    model.gate.set()
    assert undone(receiver)[1] == Verified(versions[0].fingerprint)
    model.counted.clear()
    assert audited(receiver) == Audited("done")
    assert model.counted == [SECOND, THIRD]


def test_a_recount_begins_anew_after_an_anchor(
    receiver: Receiver, model: GatedModel, versions: list[Manifest], tmp_path: Path
) -> None:
    model.gate.set()
    assert sync(receiver, versions[2], tmp_path) == Verified(versions[2].fingerprint)
    model.counted.clear()
    assert audited(receiver) == Audited("done")
    assert model.counted == [FIRST, SECOND, THIRD]


def test_a_flipped_bit_loses_the_version_and_the_trust_in_writing_in_place(
    receiver: Receiver, model: GatedModel, versions: list[Manifest], tmp_path: Path
) -> None:
    bits(model.live[SECOND])[7] ^= 1
    model.gate.set()
    assert audited(receiver) == Audited("done", (SECOND,))
    assert not model.is_trusted
    assert receiver.audit() == Audited("done", ("no version is known to be live",))
    assert staged(receiver, versions[1], tmp_path).error_kind == "ChainError"
    assert sync(receiver, versions[2], tmp_path) == Verified(versions[2].fingerprint)
    assert audited(receiver) == Audited("done")


def test_a_change_behind_the_recount_is_found_by_the_next_one(receiver: Receiver, model: GatedModel) -> None:
    bits(model.live[FIRST])[0] ^= 1
    model.gate.set()
    assert audited(receiver) == Audited("done")
    assert audited(receiver) == Audited("done", (FIRST,))


def test_a_lost_version_ends_its_recount(receiver: Receiver, model: GatedModel) -> None:
    receiver.lose()
    assert model.counted == [FIRST]
    assert receiver.audit() == Audited("done", ("no version is known to be live",))
