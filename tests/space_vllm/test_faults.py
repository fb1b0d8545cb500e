"""Faults planted in a live server: each is noticed, told in the status, and outlived by a verified version."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from shared.types import Manifest
from tests.space_vllm.fakes import publisher
from tests.space_vllm.faults import Plan
from tests.space_vllm.live_server import Server, in_float32
from tests.space_vllm.tiny import POSITIONS, Weights, greedy, live_checksums, partly_changed, random_weights, regret
from trainer_box.publisher import Publisher

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

TENSOR = "model.layers.0.mlp.up_proj.weight"  # the one that a wrong scatter concerns
PROMPTS = (list(range(7, 31)), list(range(40, 50)), [5, 250, 5, 17])
CACHED = [3 + number * 7 % 290 for number in range(600)]
TOKENS = 24
CLOSE, FAR = 0.05, 0.3  # of the regret of an answer, under the weights that gave it and under others
ASK_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Story:
    """Three versions that follow each other."""

    old: Weights
    new: Weights
    later: Weights


@pytest.fixture(scope="module")
def story() -> Story:
    old = random_weights(31, tied=True)
    new = partly_changed(old, 32)
    return Story(old, new, partly_changed(new, 33))


@dataclass
class Scene:
    """`old` is served as version 0, nobody has published `new` yet, and no fault has happened."""

    server: Server
    plan: Plan
    story: Story
    run_id: str
    out: Publisher
    before: dict[str, int]

    def publish_new(self, kind: str = "delta") -> Manifest:
        if kind == "anchor":  # which a new publisher starts with
            self.out.close()
            self.out = publisher(self.server.bucket, self.run_id)
        manifest = self.out.publish(self.story.new.items())
        assert (manifest.kind, manifest.version) == (kind, 1)
        return manifest

    def ends_on(self, version: int, weights: Weights) -> dict[str, Any]:
        """The status once the version is served and all that was to go wrong has."""
        status = self.server.wait_until(
            lambda now: (now["run_id"], now["version"], now["state"]) == (self.run_id, version, "serving"),
            f"{self.run_id} serves version {version}",
        )
        assert self.server.is_healthy()
        assert self.plan.left() == {}
        assert self.server.checksums() == live_checksums(weights, self.server.dtype)
        return status

    def goes_on(self) -> None:
        """The next good version goes through, in whatever way it can."""
        manifest = self.out.publish(self.story.later.items())
        status, answer = self.server.update(manifest)
        assert (status, answer.get("version")) == (200, manifest.version), answer
        self.ends_on(manifest.version, self.story.later)

    def aborted(self) -> float:
        return self.server.metric("vllm:request_success_total", 'finished_reason="abort"')

    def counted(self, status: dict[str, Any]) -> dict[str, int]:
        return {name: status["counters"][name] - self.before[name] for name in ("undone", "lost")}


@pytest.fixture
def scene(server: Server, story: Story) -> Iterator[Scene]:
    plan, run_id = Plan(server.bucket.parent), f"fault-{uuid4().hex[:8]}"
    out = publisher(server.bucket, run_id)
    assert server.update(out.publish(story.old.items()))[0] == 200
    scene = Scene(server, plan, story, run_id, out, server.status()["counters"])
    yield scene
    scene.out.close()
    plan.arm(trust=1)  # when the next version is staged


@dataclass
class Asked:
    """What clients and an observer saw: prompt, status and tokens of each completion, and states of the server."""

    completions: list[tuple[int, int, list[int]]] = field(default_factory=list)
    states: set[str] = field(default_factory=set)
    health: set[int] = field(default_factory=set)

    def check(self, *served: Weights) -> None:
        """Each completion is what one of these verified versions answers, or was refused."""
        assert {status for _, status, _ in self.completions} <= {200, 503}
        answers = {(number, tuple(tokens)) for number, status, tokens in self.completions if status == 200}
        for number, tokens in answers:
            assert min(regret(weights, PROMPTS[number], list(tokens)) for weights in served) < CLOSE


@contextmanager
def asking(server: Server) -> Iterator[Asked]:
    """Clients ask one completion after the other, and somebody watches, until the end; all have begun by then."""
    asked, stop = Asked(), Event()

    def client(number: int) -> None:
        while not stop.is_set():
            status, tokens = server.greedy(PROMPTS[number], TOKENS)
            asked.completions.append((number, status, tokens))
            stop.wait(0.0 if status == 200 else 0.1)

    def watch() -> None:
        while not stop.is_set():
            asked.states.add(server.status()["state"])
            asked.health.add(server.call("/health")[0])
            stop.wait(0.05)

    with ThreadPoolExecutor(len(PROMPTS) + 1) as pool:
        work = [pool.submit(client, number) for number in range(len(PROMPTS))] + [pool.submit(watch)]
        try:
            _wait_for_each(asked)
            yield asked
            _wait_for_each(asked)
        finally:
            stop.set()
        for task in work:
            task.result()


def _wait_for_each(asked: Asked) -> None:
    """Until each client has one more answer with status 200."""
    start, deadline = len(asked.completions), time.monotonic() + ASK_DEADLINE_S
    while {n for n, status, _ in asked.completions[start:] if status == 200} != set(range(len(PROMPTS))):
        assert time.monotonic() < deadline, f"no answers in time: {asked.completions[-5:]}"
        time.sleep(0.05)


@dataclass(frozen=True)
class Case:
    """A fault that shows in the pause. `is_undone` when the old version could be put back; else it is lost."""

    faults: dict[str, int]
    is_undone: bool
    sentence: str
    kind: str = "delta"


CASES = {
    "scatter one element off": Case({"one_off": 1}, False, "could not be put back: the live weights have fingerprint"),
    "a tensor skipped": Case({"skip": 1}, True, "afterwards the live weights have fingerprint"),
    "padding that is not zero": Case({"padding": 1}, False, "the padding of live parameter 'model.embed_tokens"),
    "a loader that raises": Case({"half_load": 1}, True, "the loader broke", "anchor"),
    "and cannot be undone": Case(
        {"half_load": 1, "no_undo": 1}, False, "the old weights cannot be put back", "anchor"
    ),
}


@in_float32
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_version_that_was_placed_wrongly_is_never_answered_from(scene: Scene, case: Case) -> None:
    manifest, story, aborted = scene.publish_new(case.kind), scene.story, scene.aborted()
    scene.plan.arm(**case.faults)
    with asking(scene.server) as asked:
        status, answer = scene.server.update(manifest)
        assert status == (409 if case.is_undone else 503), answer
        assert case.sentence in answer["error"]
        assert answer["served_version"] == 0
        found = scene.ends_on(*(0, story.old) if case.is_undone else (1, story.new))
    asked.check(story.old, story.new)
    assert scene.counted(found) == {"undone": int(case.is_undone), "lost": int(not case.is_undone)}
    assert case.sentence in found["last_error"]
    assert (503 in asked.health, "dirty" in asked.states) == (not case.is_undone, not case.is_undone)
    assert (scene.aborted() > aborted) == (not case.is_undone)
    scene.goes_on()


@in_float32
def test_a_worker_that_does_not_say_what_is_live_costs_a_rebuild_and_cuts_streams(scene: Scene) -> None:
    manifest, story = scene.publish_new(), scene.story
    scene.plan.arm(break_off=1)
    with asking(scene.server) as asked:
        stream = scene.server.stream(PROMPTS[0], POSITIONS - len(PROMPTS[0]))
        next(stream)
        status, answer = scene.server.update(manifest)
        assert (status, "the worker broke off" in answer["error"]) == (503, True), answer
        found = scene.ends_on(1, story.new)
    with pytest.raises(ConnectionAbortedError):
        list(stream)
    asked.check(story.old, story.new)
    assert (503 in asked.health, "dirty" in asked.states) == (True, True)
    assert "nobody knows which weights are live" in found["last_error"]
    assert scene.counted(found) == {"undone": 0, "lost": 1}
    scene.goes_on()


@in_float32
def test_a_verification_that_lies_is_found_out_by_the_next_recount(scene: Scene) -> None:
    manifest = scene.publish_new()
    scene.plan.arm(one_off=1, lie=1)
    with asking(scene.server) as asked:
        status, answer = scene.server.update(manifest)
        assert (status, answer["version"]) == (200, 1), answer
        scene.server.wait_until(lambda now: now["counters"]["lost"] > scene.before["lost"], "a recount finds it")
        found = scene.ends_on(1, scene.story.new)
    assert {status for _, status, _ in asked.completions} <= {200, 503}
    assert TENSOR in found["last_error"]
    assert found["tensors"]["in_place"] == 0  # where weights lie is believed no more
    scene.goes_on()


@in_float32
def test_a_bit_that_flips_in_live_memory_is_found_by_a_recount(scene: Scene) -> None:
    scene.plan.arm(flip=1)
    with asking(scene.server) as asked:
        scene.server.wait_until(lambda now: now["counters"]["lost"] > scene.before["lost"], "a recount finds it")
        found = scene.ends_on(0, scene.story.old)
    assert {status for _, status, _ in asked.completions} <= {200, 503}
    assert "recount found 1 live tensors, such as 'model.norm.weight'" in found["last_error"]
    scene.goes_on()


@in_float32
def test_a_cache_that_was_not_cleared_at_first_is_cleared_before_the_new_weights_are_placed(scene: Scene) -> None:
    story = scene.story
    assert regret(story.new, CACHED, scene.server.greedy(CACHED, TOKENS)[1]) > FAR
    manifest = scene.publish_new()
    scene.plan.arm(sticky_cache=1)
    with asking(scene.server) as asked:
        assert scene.server.update(manifest)[0] == 200
        scene.ends_on(1, story.new)
    assert {status for _, status, _ in asked.completions} == {200}
    assert regret(story.new, CACHED, scene.server.greedy(CACHED, TOKENS)[1]) < CLOSE
    scene.goes_on()


@in_float32
def test_while_the_cache_cannot_be_cleared_no_version_is_placed(scene: Scene) -> None:
    assert scene.server.greedy(CACHED, TOKENS)[0] == 200
    manifest = scene.publish_new()
    scene.plan.arm(sticky_cache=2)  # in the pause, and at the reset that follows
    with asking(scene.server) as asked:
        status, answer = scene.server.update(manifest)
        assert (status, answer["served_version"]) == (503, 0)
        found = scene.ends_on(0, scene.story.old)
    asked.check(scene.story.old)
    assert "prefix cache still holds" in answer["error"]
    assert found["last_error"] == answer["error"]
    assert scene.server.update(manifest)[0] == 200
    scene.ends_on(1, scene.story.new)
    scene.goes_on()


def test_half_placed_weights_would_have_answered_something_else(story: Story) -> None:
    """Else the tests above could not tell."""
    half = {**story.new, TENSOR: story.old[TENSOR]}
    answer = greedy(half, PROMPTS[0], TOKENS)
    assert regret(half, PROMPTS[0], answer) < CLOSE
    assert min(regret(weights, PROMPTS[0], answer) for weights in (story.old, story.new)) > FAR
