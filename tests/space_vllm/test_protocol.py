"""Messages lost, doubled, reordered and made up, damaged files, broken writes, restarts, in any order.

While the Space lets anybody in, its live weights are bit by bit the version that it says it serves, and that version
never goes back.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.bits import bits
from shared.types import Manifest
from space_vllm.placement import Weights
from tests.shared.weights import copies, model, nudge, same
from tests.space_vllm.fakes import FakeClient, Running, publisher, running
from trainer_box.publisher import Publisher

T = TypeVar("T")


class SpaceProtocol(RuleBasedStateMachine):
    """`versions` holds the weights of every version that was published, by number."""

    space: Running
    out: Publisher

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.loop = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.weights = model()
        self.versions: dict[int, Weights] = {}
        self.manifests: list[Manifest] = []
        self.damaged: dict[Path, bytes] = {}
        self.served = -1

    @property
    def path(self) -> Path:
        return Path(self.folder.name)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    @initialize()
    def open(self) -> None:
        self.out = publisher(self.path, "run")
        self._start()
        self.publish(1, True)

    @rule(count=st.integers(0, 8), announced=st.booleans())
    def publish(self, count: int, announced: bool) -> None:
        nudge(self.weights, len(self.versions), count)
        manifest = self.out.publish(self.weights.items())
        self.versions[manifest.version] = copies(self.weights)
        self.manifests.append(manifest)
        if announced:
            self.do(self.space.update(manifest, wait=2))

    @rule()
    def publish_everything_anew(self) -> None:
        for tensor in self.weights.values():
            bits(tensor).bitwise_xor_(1)
        self.publish(1, True)

    @rule()
    def a_new_publisher_goes_on(self) -> None:
        """Without closing the one before, as after a crash, which ends nothing but its lock."""
        self.out._writer.close()
        self.out = publisher(self.path, "run")

    @rule(data=st.data(), shift=st.sampled_from([0, 0, 0, 1, 40]))
    def message(self, data: st.DataObject, shift: int) -> None:
        """Any version's, again or late; or one that is made up."""
        manifest = data.draw(st.sampled_from(self.manifests))
        self.do(self.space.update(replace(manifest, version=manifest.version + shift), wait=2))

    @rule(data=st.data())
    def messages_at_once(self, data: st.DataObject) -> None:
        manifests = data.draw(st.lists(st.sampled_from(self.manifests), min_size=2, max_size=5))

        async def all_of_them() -> None:
            await asyncio.gather(*(self.space.update(manifest, wait=2) for manifest in manifests))

        self.do(all_of_them())

    @rule(data=st.data(), place=st.integers(0, 10_000), delete=st.booleans())
    def damage(self, data: st.DataObject, place: int, delete: bool) -> None:
        file = self.path / data.draw(st.sampled_from(self.manifests)).path
        if file in self.damaged or not file.exists():  # old data is deleted
            return
        raw = bytearray(file.read_bytes())
        self.damaged[file] = bytes(raw)
        raw[place % len(raw)] ^= 4
        file.unlink() if delete else file.write_bytes(raw)

    @precondition(lambda self: self.damaged)
    @rule()
    def repair(self) -> None:
        for file, raw in self.damaged.items():
            file.write_bytes(raw)
        self.damaged.clear()

    @rule(fault=st.sampled_from(["failures", "skewed", "cache"]))
    def something_will_break(self, fault: str) -> None:
        if fault == "cache":
            self.space.client.cached, self.space.client.sticky = 5, 3
        else:
            setattr(self.space.client.model, fault, 1)

    @rule()
    def restart(self) -> None:
        self.do(self.stack.aclose())
        self._start()

    @precondition(lambda self: not self.damaged)
    @rule()
    def all_is_well_in_the_end(self) -> None:
        self.space.client.model.failures = self.space.client.model.skewed = self.space.client.sticky = 0
        self.publish(1, True)
        self.do(self.space.healthy())
        assert self.space.space.reconciler.status.version == self.manifests[-1].version

    @invariant()
    def what_is_served_is_what_was_published(self) -> None:
        space = self.space.space
        served = space.reconciler.status.served
        if served is None or served.run is None or self.space.client.paused or not space.updates._door.is_open:
            return
        assert same(self.space.live, self.versions[served.version])
        assert served.version >= self.served
        self.served = served.version

    def teardown(self) -> None:
        self.do(self.stack.aclose())
        self.loop.close()
        self.folder.cleanup()

    def _start(self) -> None:
        client = FakeClient(model(seed=7))
        self.space = self.do(self.stack.enter_async_context(running(self.path, client=client, healthy=False)))
        self.served = -1


TestSpaceProtocol = SpaceProtocol.TestCase
TestSpaceProtocol.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
