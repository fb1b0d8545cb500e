"""Publishing, failing, damage, joining in any order: a receiver always holds a published version, bit by bit."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared import layout
from shared.bits import bits
from shared.chain import find_paths
from shared.errors import BucketError, ChainError, IntegrityError, SyncError
from shared.files import Encoding
from shared.fingerprint import fingerprint, to_text
from shared.follower import Follower
from shared.reader import RunReader
from tests.shared.extra_anchor import add_anchor
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, copies, model, nudge, same
from trainer_box.publisher import Publisher

POINTER = layout.pointer("r")


class Protocol(RuleBasedStateMachine):
    """`attempted` holds the weights of every version that was begun, also those whose publishing failed.

    `damaged` holds what the damaged files were before, `pointers` every pointer there was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bucket = MemoryBucket()
        self.weights = model()
        self.attempted: dict[int, Weights] = {}
        self.fingerprints: dict[int, str] = {}
        self.damaged: dict[str, bytes] = {}
        self.pointers: list[bytes] = []
        self.receivers: list[tuple[Follower, Weights]] = [(Follower(self.bucket), {})]
        self.versions = [-1]
        self.seed = 0

    @initialize(encoding=st.sampled_from(["packed", "coo"]), versions=st.integers(0, 4))
    def open(self, encoding: Encoding, versions: int) -> None:
        self.encoding = encoding
        self.publisher = Publisher(self.bucket, "r", encoding=encoding)
        for _ in range(versions):
            self._publish(0)
            self._train(5)

    @rule(steps=st.lists(st.integers(0, 8), min_size=1, max_size=5), skip=st.integers(0, 2))
    def train_and_publish(self, steps: list[int], skip: int) -> None:
        """Mostly deltas: so many elements of each tensor change per step."""
        try:
            for count in steps:
                self._train(count)
                self._publish(skip)
        except (IntegrityError, ChainError):
            assert self.damaged, "the publisher looks at the pointer and its manifest"

    @rule(everything=st.booleans())
    def train_without_publishing(self, everything: bool) -> None:
        """After a change of everything the next version will be an anchor."""
        self._train(3)
        for tensor in self.weights.values() if everything else ():
            bits(tensor).bitwise_xor_(1)

    @rule(call=st.integers(0, 3), late=st.booleans())
    def publish_while_the_bucket_fails(self, call: int, late: bool) -> None:
        self.bucket.fail_in, self.bucket.late = call, late
        try:
            self._publish(0)
        except BucketError:
            assert self.bucket.fail_in is None
        except (IntegrityError, ChainError):
            assert self.damaged
        self.bucket.fail_in = None

    @precondition(lambda self: not self.damaged)
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

    @precondition(lambda self: self._published())
    @rule(data=st.data(), shards=st.integers(1, 2), call=st.none() | st.integers(0, 2), late=st.booleans())
    def add_an_anchor(self, data: st.DataObject, shards: int, call: int | None, late: bool) -> None:
        """Beside the chain, by a helper that may crash half-way, and then finds its files there already."""
        version = data.draw(st.sampled_from(self._published()))
        self.bucket.fail_in, self.bucket.late = call, late
        try:
            add_anchor(self.bucket, version, self.attempted[version], shards)
        except BucketError:
            pass
        self.bucket.fail_in = None

    @rule(data=st.data(), files=st.integers(1, 3), lost=st.booleans())
    def damage(self, data: st.DataObject, files: int, lost: bool) -> None:
        """One bit changes in each of some files, or all of them is gone."""
        for _ in range(files):
            whole = sorted(self.bucket.stored.keys() - {layout.run_file("r")} - self.damaged.keys())
            if whole:
                self._damage(data.draw(st.sampled_from(whole)), lost, data.draw(st.integers(0, 79_999)))

    @precondition(lambda self: self.damaged)
    @rule(data=st.data(), everything=st.booleans())
    def repair(self, data: st.DataObject, everything: bool) -> None:
        paths = sorted(self.damaged)
        for path in paths if everything else [data.draw(st.sampled_from(paths))]:
            self.bucket.stored[path] = self.damaged.pop(path)

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

    @rule(data=st.data(), fail_in=st.none() | st.integers(0, 12), late=st.booleans())
    def catch_up(self, data: st.DataObject, fail_in: int | None, late: bool) -> None:
        """With `late`, an older pointer is read, as messages arrive out of order."""
        place, present = data.draw(st.integers(0, len(self.receivers) - 1)), self.bucket.stored.get(POINTER)
        if late and self.pointers and POINTER not in self.damaged:
            self.bucket.stored[POINTER] = data.draw(st.sampled_from(self.pointers))
        self._catch_up(place, fail_in)
        if present is not None:
            self.bucket.stored[POINTER] = present

    @precondition(lambda self: self._published() and not self.damaged)
    @rule()
    def all_catch_up_twice(self) -> None:
        newest = RunReader(self.bucket, "r").newest().version if POINTER in self.bucket.stored else -1
        for place in range(len(self.receivers)):
            for _ in range(2 if newest >= 0 else 0):
                self._catch_up(place, None)
                assert self.versions[place] >= newest

    @precondition(lambda self: self.damaged)
    @rule()
    def newcomers_start_wherever_a_way_is_whole(self) -> None:
        reader = RunReader(self.bucket, "r")
        try:
            target = reader.newest()
            paths = find_paths(target, None, reader)
        except SyncError:
            return
        ways = [[file.path for step in path for file in step.files] for path in paths]
        if any(self.damaged.keys().isdisjoint(way) for way in ways):
            for weights in ({}, model(seed=1000)):
                assert Follower(self.bucket, "r").catch_up(weights) == target
                assert same(weights, self.attempted[target.version])

    @invariant()
    def every_whole_version_is_what_was_to_be_published(self) -> None:
        undamaged = replace(self.bucket, stored=self.bucket.stored | self.damaged)
        for manifest in RunReader(undamaged, "r").manifests():
            assert manifest.fingerprint == self.fingerprints[manifest.version]
            assert manifest.path in undamaged.stored

    def _catch_up(self, place: int, fail_in: int | None) -> None:
        follower, weights = self.receivers[place]
        before = copies(weights)
        self.bucket.fail_in = fail_in
        try:
            version = follower.catch_up(weights).version
        except SyncError as error:
            assert same(weights, before)
            assert fail_in is not None or self.damaged or POINTER not in self.bucket.stored
            assert fail_in is not None or isinstance(error, IntegrityError | ChainError)
        else:
            assert version >= self.versions[place]
            assert same(weights, self.attempted[version])
            self.versions[place] = version
        self.bucket.fail_in = None

    def _damage(self, path: str, lost: bool, place: int) -> None:
        self.damaged[path] = self.bucket.stored.pop(path)
        raw = bytearray(self.damaged[path])
        length = min(len(raw), 400) if path.endswith(".json") else len(raw)  # further on there are durations
        raw[place // 8 % length] ^= 1 << place % 8
        if not lost:
            self.bucket.stored[path] = bytes(raw)

    def _train(self, count: int) -> None:
        self.seed += 1
        nudge(self.weights, self.seed, count)

    def _published(self) -> list[int]:
        """The versions whose manifests are whole and undamaged."""
        return [
            version
            for version in self.attempted
            if (path := layout.manifest("r", version)) in self.bucket.stored and path not in self.damaged
        ]

    def _publish(self, skip: int) -> None:
        diff = self.publisher.diff(self.weights.items())
        if skip:
            diff = self.publisher.diff(self.weights.items(), version=diff.version + skip)
        numbers = map(layout.version_of, self.bucket.stored | self.damaged)
        assert diff.version > max((number for number in numbers if number is not None), default=-1), (
            "a number is reused"
        )
        self.attempted[diff.version] = copies(self.weights)
        self.fingerprints[diff.version] = to_text(fingerprint(self.weights))
        before = self.bucket.stored.get(POINTER)
        try:
            assert self.publisher.commit(diff).version == diff.version
        finally:
            if (written := self.bucket.stored.get(POINTER)) not in (before, None):
                self.damaged.pop(POINTER, None)
                self.pointers.append(written)


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
