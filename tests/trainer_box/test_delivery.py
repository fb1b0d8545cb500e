"""The thread behind training: in which order a version gets to the Space, and what follows when something fails."""

import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shared import strict_json
from shared.errors import BucketError, FencedError, IntegrityError, SyncError
from shared.types import DataFile, Json, Manifest, now
from tests.shared.fake_bucket import MemoryBucket
from tests.trainer_box.fake_versions import FakePublisher, FakeReplica, manifest_of
from trainer_box.delivery import Delivery, Parcel, Sync
from trainer_box.replica import Acknowledgement, NeedsAnchorError, Pending

DEADLINE_S = 30
ROLLOUT = {"version": 0, "messages": [{"role": "user", "content": "hi"}], "numbers": {"reward": 0.5}}
AWAY = Pending("ConnectError: refused")


class Pauses(threading.Event):
    """Does not wait, and keeps for how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return self.is_set()


class Bench:
    """A delivery with stand-ins around it."""

    def __init__(self, *answers: Pending | BaseException | None) -> None:
        self.bucket = MemoryBucket()
        self.publisher = FakePublisher()
        self.replica = FakeReplica(answers)
        self.lines: list[str] = []
        self.heard: list[int] = []
        self.pauses = Pauses()
        listeners: list[Callable[[Sync], Any]] = [lambda sync: self.heard.append(sync.manifest.version)]
        self.delivery = Delivery(self.bucket, self.publisher, self.replica, listeners, self.lines.append)
        self.delivery._leaving = self.pauses

    def deliver(self, version: int, *rollouts: Json) -> None:
        """To its end."""
        parcel = Parcel(version, lambda: self.publisher.commit((version, "0" * 16), {}), rollouts, 0.0)
        self.delivery.start(parcel)
        self.delivery.wait(lambda: False, DEADLINE_S)
        assert not self.delivery.is_busy


def test_the_line_of_a_sync_has_the_agreed_shape() -> None:
    data = DataFile("run/deltas/step_000042.safetensors", 6_104_000, "0" * 32)
    manifest = Manifest(
        "run",
        42,
        "delta",
        (data,),
        "0" * 16,
        62,
        10_000,
        1,
        now(),
        base_version=41,
        base_fingerprint="1" * 16,
        seconds={"diff": 0.2, "encode": 0.1, "upload": 3.5},
    )
    sync = Sync(manifest, Acknowledgement(42, stage_ms=1200, pause_ms=50, apply_ms=20), 5.05)
    assert sync.line() == (
        "sync v42 delta 6.10 MB sparsity 0.9938 | "
        "diff 0.20s encode 0.10s upload 3.50s stage 1.20s pause 0.05s verified"
    )


def test_a_version_is_published_announced_and_acknowledged() -> None:
    bench = Bench()
    assert (bench.delivery.acknowledged, bench.delivery.last) == (-1, None)
    bench.deliver(0)
    bench.deliver(3, ROLLOUT, ROLLOUT)
    assert bench.replica.announced == bench.heard == [0, 3]
    assert bench.delivery.acknowledged == 3
    assert bench.delivery.last is not None
    assert bench.delivery.last.manifest.version == 3
    assert [line.split(" | ")[0].split()[:2] for line in bench.lines] == [["sync", "v0"], ["sync", "v3"]]
    assert list(bench.bucket.stored) == ["run/rollouts/000003.jsonl"]
    lines = bench.bucket.stored["run/rollouts/000003.jsonl"].decode().splitlines()
    assert [json.loads(line) for line in lines] == [ROLLOUT, ROLLOUT]
    assert bench.delivery.failure is None


def test_listeners_are_told_before_whoever_waits() -> None:
    bench, seen = Bench(), []
    bench.delivery._listeners = [lambda sync: seen.append(bench.delivery.acknowledged)]
    bench.deliver(0)
    assert seen == [-1]


def test_a_space_that_is_at_it_is_asked_again_without_a_growing_pause() -> None:
    bench = Bench(*[Pending("HTTP 202", is_under_way=True)] * 9)
    bench.deliver(0)
    assert bench.replica.announced == [0] * 10
    assert set(bench.pauses.seconds) == {0.5}
    assert len(bench.lines) == 1, "nothing is wrong, so there is nothing to say but the end"


def test_a_space_that_is_away_is_asked_more_and_more_rarely_until_it_is_back() -> None:
    bench = Bench(*[AWAY] * 7)
    bench.deliver(0)
    assert bench.pauses.seconds == [1, 2, 4, 8, 16, 30, 30]
    assert bench.lines[0] == "sync v0 is published, but not served yet: ConnectError: refused"
    assert len(bench.lines) == 2, "the problem is told once"
    assert (bench.delivery.acknowledged, bench.delivery.problem) == (0, "")
    bench.replica.answers = [AWAY]
    bench.deliver(1)
    assert bench.pauses.seconds[7:] == [1], "an acknowledgement makes it patient again"


def test_a_publish_that_failed_is_asked_after_until_its_outcome_is_known() -> None:
    bench = Bench()
    bench.publisher.failing = [BucketError("upload broke off")]
    bench.publisher.settling = [BucketError("no answer"), BucketError("no answer"), None]
    bench.deliver(4)
    assert bench.publisher.settling == []
    assert bench.pauses.seconds == [1, 2, 4]
    assert bench.lines == ["sync v4 is not published, the next one covers it: upload broke off"]
    assert (bench.delivery.acknowledged, bench.replica.announced) == (-1, [])
    assert bench.delivery.problem == "no answer"
    assert bench.delivery.failure is None


def test_a_version_that_turns_out_to_be_whole_is_announced() -> None:
    bench = Bench()
    bench.publisher.failing, bench.publisher.settling = [BucketError("no answer")], [manifest_of(4)]
    bench.deliver(4)
    assert (bench.delivery.acknowledged, bench.replica.announced) == (4, [4])


def test_a_disk_that_is_full_passes() -> None:
    bench = Bench()
    bench.publisher.failing = [SyncError("cannot be prepared on this machine's disk")]
    bench.deliver(1)
    bench.deliver(2)
    assert bench.delivery.acknowledged == 2


def test_a_space_that_needs_an_anchor_gets_one_next() -> None:
    bench = Bench(NeedsAnchorError("HTTP 409"))
    bench.deliver(1)
    assert (bench.publisher.rebased, bench.delivery.acknowledged, bench.delivery.failure) == (1, -1, None)
    assert bench.pauses.seconds == [1], "or a Space that refuses each anchor would get one after the other"
    assert bench.lines == ["sync v1 leads nowhere, an anchor follows: HTTP 409"]
    bench.deliver(2)
    assert bench.delivery.acknowledged == 2


@pytest.mark.parametrize("error", [FencedError("epoch 2"), IntegrityError("memory is damaged")])
def test_a_publish_that_no_later_one_mends_is_kept(error: Exception) -> None:
    bench = Bench()
    bench.publisher.failing = [error]
    bench.deliver(1)
    assert bench.delivery.failure is error
    assert bench.replica.announced == []


@pytest.mark.parametrize("error", [RuntimeError("no\nsuch"), KeyError("x"), OSError(28, "no space"), SystemExit(3)])
def test_whatever_else_ends_it_is_kept_as_a_sentence_and_its_trace_is_logged(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.publisher.failing = [error]
    bench.deliver(1)
    sentence = str(bench.delivery.failure)
    assert sentence.startswith(f"sync v1 ended by a bug: {type(error).__name__} ")
    assert sentence.endswith("; its traceback is in the log")
    assert "\n" not in sentence
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[1] is error


def test_a_bug_of_who_listens_is_kept_as_well() -> None:
    bench = Bench()
    bench.delivery._listeners = [lambda sync: dict[str, None]()["version"]]
    bench.deliver(1)
    assert str(bench.delivery.failure).startswith("sync v1 ended by a bug: KeyError 'version'")
    assert bench.delivery.acknowledged == -1


def test_a_takeover_that_is_found_while_settling_is_kept() -> None:
    bench, fenced = Bench(), FencedError("epoch 2")
    bench.publisher.failing, bench.publisher.settling = [BucketError("no answer")], [fenced]
    bench.deliver(1)
    assert bench.delivery.failure is fenced


def test_a_refusal_is_kept() -> None:
    refusal = SyncError("HTTP 403")
    bench = Bench(refusal)
    bench.deliver(1)
    assert bench.delivery.failure is refusal
    assert (bench.delivery.acknowledged, bench.heard) == (-1, [])


def test_rollouts_are_strict_json_whatever_is_in_them() -> None:
    bench = Bench()
    bench.deliver(
        1, {"numbers": {"reward": float("inf"), "ratio": float("nan")}, "content": "a \ud83d b", "words": {3}}
    )
    (line,) = bench.bucket.stored["run/rollouts/000001.jsonl"].splitlines()
    assert strict_json.parse(line) == {
        "numbers": {"reward": None, "ratio": None},
        "content": "a ? b",
        "words": "{3}",
    }


def test_rollouts_that_cannot_be_stored_hold_nothing_up() -> None:
    bench = Bench()
    bench.bucket.fail_in = 0
    bench.deliver(1, ROLLOUT)
    assert bench.delivery.acknowledged == 1
    assert "goes on without its rollouts: cannot write run/rollouts/000001.jsonl" in bench.lines[0]


def test_whoever_sees_a_version_acknowledged_may_start_the_next_one() -> None:
    bench = Bench()
    for version in range(50):
        parcel = Parcel(version, partial(bench.publisher.commit, (version, "0" * 16), {}), (), 0.0)
        bench.delivery.start(parcel)
        bench.delivery.wait(partial(lambda wanted: bench.delivery.acknowledged >= wanted, version), DEADLINE_S)
        assert not bench.delivery.is_busy


def test_no_version_waits_until_it_is_found_what_is_to_be_done_beside_the_chain() -> None:
    bench, begun, free = Bench(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert free.wait(DEADLINE_S)

    bench.publisher.looking = slow
    with bench.delivery:
        for version in range(3):
            bench.deliver(version)
        assert begun.wait(DEADLINE_S)
        assert bench.delivery.acknowledged == 2
        free.set()


def test_no_version_waits_for_what_is_done_beside_the_chain_and_only_one_such_thing_is_done_at_a_time() -> None:
    bench, begun, free, second = Bench(), threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert free.wait(DEADLINE_S)

    bench.publisher.house = [slow, second.set]
    with bench.delivery:
        for version in range(3):
            bench.deliver(version)
        assert begun.wait(DEADLINE_S)
        assert (bench.delivery.acknowledged, len(bench.publisher.house)) == (2, 1)
        free.set()
        assert bench.delivery._house is not None
        bench.delivery._house.join(DEADLINE_S)
        bench.deliver(3)
    assert second.is_set(), "leaving waits for what is nearly done"


def test_leaving_ends_what_is_waited_for() -> None:
    told = threading.Event()
    replica = FakeReplica([AWAY] * 1000)
    with Delivery(MemoryBucket(), FakePublisher(), replica, (), lambda line: told.set()) as delivery:
        delivery.start(Parcel(0, lambda: manifest_of(0), (), 0.0))
        assert told.wait(DEADLINE_S)
    assert not delivery.is_busy
    assert delivery.failure is None
    assert len(replica.announced) < 10


def test_leaving_does_not_wait_for_what_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_box.delivery._LEAVE_S", 0.01)
    replica, lines = FakeReplica(), list[str]()
    replica.gate.clear()
    with Delivery(MemoryBucket(), FakePublisher(), replica, (), lines.append) as delivery:
        delivery.start(Parcel(0, lambda: manifest_of(0), (), 0.0))
    assert delivery.is_busy
    (stuck,) = [thread for thread in threading.enumerate() if thread.name == "delivery"]
    assert stuck.daemon, "it does not keep the process alive"
    replica.gate.set()
    stuck.join(DEADLINE_S)
    assert lines == []


def test_an_interrupt_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_box.delivery._LEAVE_S", 3600)
    replica = FakeReplica()
    replica.gate.clear()
    with (
        pytest.raises(KeyboardInterrupt),
        Delivery(MemoryBucket(), FakePublisher(), replica, (), lambda line: None) as delivery,
    ):
        delivery.start(Parcel(0, lambda: manifest_of(0), (), 0.0))
        raise KeyboardInterrupt
    assert delivery.is_busy
    replica.gate.set()
    delivery.wait(lambda: False, DEADLINE_S)
