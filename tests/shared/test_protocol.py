"""Publishing, failing, reopening and joining in any order: a receiver always holds a published version, bit by bit."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared import layout
from shared.bits import bits
from shared.errors import BucketError, SyncError
from shared.files import Encoding
from shared.fingerprint import fingerprint, to_text
from shared.follower import Follower
from shared.reader import RunReader
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, copies, model, nudge, same
from trainer_box.publisher import Publisher


class Protocol(RuleBasedStateMachine):
    """`attempted` holds the weights of every version that was begun, also those whose publishing failed."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = MemoryBucket()
        self.weights = model()
        self.attempted: dict[int, Weights] = {}
        self.receivers: list[tuple[Follower, Weights]] = []
        self.versions: list[int] = []
        self.seed = 0

    @initialize(encoding=st.sampled_from(["packed", "coo"]))
    def open(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.publisher = Publisher(self.bucket, "r", encoding=encoding)

    @rule(count=st.integers(0, 8))
    def train(self, count: int) -> None:
        self.seed += 1
        nudge(self.weights, self.seed, count)

    @rule()
    def train_everything(self) -> None:
        for tensor in self.weights.values():
            bits(tensor).bitwise_xor_(1)

    @rule(skip=st.integers(0, 2))
    def publish(self, skip: int) -> None:
        self._publish(skip)

    @rule(call=st.integers(0, 3), late=st.booleans())
    def publish_while_the_bucket_fails(self, call: int, late: bool) -> None:
        self.bucket.fail_in, self.bucket.late = call, late
        try:
            self._publish(0)
        except BucketError:
            assert self.bucket.fail_in is None
        self.bucket.fail_in = None

    @rule(call=st.integers(0, 6))
    def reopen(self, call: int) -> None:
        """Without closing, as after a crash; opening may fail too."""
        self.bucket.fail_in = call
        try:
            self.publisher = Publisher(self.bucket, "r", encoding=self.encoding)
        except BucketError:
            self.bucket.fail_in = None
            self.publisher = Publisher(self.bucket, "r", encoding=self.encoding)
        self.bucket.fail_in = None

    @precondition(lambda self: len(self.receivers) < 3)
    @rule(start=st.sampled_from(["empty", "own", "older"]), data=st.data())
    def join(self, start: str, data: st.DataObject) -> None:
        weights: Weights = {}
        if start == "own":
            weights = model(seed=1000)
        if start == "older" and self.attempted:
            weights = copies(self.attempted[data.draw(st.sampled_from(sorted(self.attempted)))])
        self.receivers.append((Follower(self.bucket), weights))
        self.versions.append(-1)

    @precondition(lambda self: self.receivers)
    @rule(data=st.data(), fail_in=st.none() | st.integers(0, 12))
    def catch_up(self, data: st.DataObject, fail_in: int | None) -> None:
        place = data.draw(st.integers(0, len(self.receivers) - 1))
        follower, weights = self.receivers[place]
        before = copies(weights)
        self.bucket.fail_in = fail_in
        try:
            version = follower.catch_up(weights).version
        except SyncError:
            assert same(weights, before)
            assert fail_in is not None or "r/latest.json" not in self.bucket.stored
        else:
            assert version >= self.versions[place]
            assert same(weights, self.attempted[version])
            self.versions[place] = version
        self.bucket.fail_in = None

    @precondition(lambda self: self.receivers and "r/latest.json" in self.bucket.stored)
    @rule()
    def all_catch_up(self) -> None:
        newest = RunReader(self.bucket, "r").newest().version
        for place, (follower, weights) in enumerate(self.receivers):
            self.versions[place] = follower.catch_up(weights).version
            assert self.versions[place] >= newest
            assert same(weights, self.attempted[self.versions[place]])

    @invariant()
    def every_whole_version_is_what_was_to_be_published(self) -> None:
        for path, raw in self.bucket.stored.items():
            assert raw or not path.startswith("r/")
        for manifest in RunReader(self.bucket, "r").manifests():
            assert manifest.fingerprint == to_text(fingerprint(self.attempted[manifest.version]))
            assert manifest.path in self.bucket.stored

    def _publish(self, skip: int) -> None:
        diff = self.publisher.diff(self.weights.items())
        if skip:
            diff = self.publisher.diff(self.weights.items(), version=diff.version + skip)
        numbers = [number for number in map(layout.version_of, self.bucket.stored) if number is not None]
        assert diff.version > max(numbers, default=-1), "a number is reused"
        self.attempted[diff.version] = copies(self.weights)
        assert self.publisher.commit(diff).version == diff.version


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
