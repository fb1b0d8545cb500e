"""Whatever a trainer, a replica, an environment or a model wrote: the page is made of it."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import IntegrityError
from shared.learning import learning
from shared.monitor import pieces
from shared.monitor.games import Choice
from shared.monitor.numbers import number_in, value_of, whole_in
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer
from shared.types import End, Json, Manifest
from tests.shared.monitor.runs import NOW, at, chain, manifest, rollout, serving, showing

TRAINER = (
    "reward",
    "reward_std",
    "ratio",
    "step",
    "max_steps",
    "environment/solved",
    "sample/staleness_mean",
    "sample/staleness_limit",
    "sample/dropped_stale_total",
    "sync/version",
    "sync/pause_ms",
    "sync/stage_ms",
    "sync/duration_s",
)
ODD = st.one_of(
    st.sampled_from(
        (None, True, -1, 0, 10**400, -(10**400), 2**63, 1e308, -1e308, 1e200, 5e-324, "nan", "inf", "-inf")
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(("", "x", "9" * 5000, [1], [], {}, {"a": [None]})),
)
FIELDS = ("files", "changed", "total", "writer_epoch", "created_at", "seconds", "fingerprint", "base_version")


def odd_among(names: tuple[str, ...]) -> st.SearchStrategy[Json]:
    return st.dictionaries(st.sampled_from(names), ODD, max_size=4)


def parsed(document: Json) -> Manifest | None:
    """As the monitor reads it, who leaves out what is damaged."""
    try:
        return Manifest.from_json(json.dumps(document).encode(), "a manifest")
    except IntegrityError:
        return None


def with_odd(one: Manifest, trainer: Json, seconds: Json, fields: Json) -> Manifest | None:
    document = json.loads(one.to_json())
    document["seconds"] |= seconds
    return parsed({**document, "trainer": {"reward": 0.5, **trainer}, **fields})


def rendered(snapshot: Snapshot) -> str:
    """All of the page."""
    for frame in pieces.frames(snapshot):
        assert frame["version"].min() >= 0
    html = [*pieces.of_now(snapshot, NOW), *pieces.of_plots(snapshot), *pieces.of_bucket(snapshot)]
    return "".join([*html, pieces.of_games(snapshot, Choice())])


@settings(deadline=None, max_examples=60)
@given(
    trainer=odd_among(TRAINER),
    seconds=odd_among(("diff", "encode", "upload")),
    fields=odd_among(FIELDS),
    said=odd_among(
        ("run_id", "version", "fingerprint", "state", "last_error", "recounted_at", "counters", "last_sync")
    ),
    last=odd_among(("version", "pause_ms")),
    counters=odd_among(("failed", "undone", "lost", "recounts")),
    environment=odd_among(("sessions", "capacity", "step_ms", "refused")),
    game=odd_among(("version", "messages", "numbers")),
    numbers=odd_among(("reward", "environment/solved", "environment/reward_x")),
)
def test_every_view_is_made_of_odd_values_too(
    trainer: Json,
    seconds: Json,
    fields: Json,
    said: Json,
    last: Json,
    counters: Json,
    environment: Json,
    game: Json,
    numbers: Json,
) -> None:
    versions = chain(3, reward=0.5)
    odd = [with_odd(manifest(version), trainer, seconds, fields) for version in (3, 4)]
    known = {"last_sync": {"run_id": "r1", "version": 4, "pause_ms": 1.0, **last}, "counters": counters}
    snapshot = showing(
        *versions,
        *(one for one in odd if one is not None),
        end=End("r1", 4, at(0), "", trainer),
        replicas={"Replica A": Answer({**serving(4).document, **known, **said})},
        environment=Answer({"sessions": 1, "capacity": 2, **environment}),
        rollout_versions=(4,),
        rollouts={4: ({**rollout(("trace", "T?R-A-C-E- 5 left")), "numbers": numbers, **game},)},
    )
    html = rendered(snapshot)
    assert len(html) < 200_000
    assert not re.search("(width|height):(nan|inf|-)", html)


@pytest.mark.parametrize(
    ("value", "number", "whole"),
    [
        (5, 5.0, 5),
        (5.0, 5.0, 5),
        (-1, -1.0, None),
        (0.5, 0.5, None),
        (True, None, None),
        ("5", None, None),
        (None, None, None),
        (float("nan"), None, None),
        (1e308, None, None),
        (10**400, None, None),
    ],
)
def test_a_number_is_finite_and_of_64_bits(value: object, number: float | None, whole: int | None) -> None:
    assert (number_in(value), whole_in(value)) == (number, whole)


@pytest.mark.parametrize(
    ("told", "seen"), [("nan", "nan"), ("inf", "nan"), (1e308, "nan"), (10**400, "nan"), ("x", "None"), (True, "None")]
)
def test_a_number_of_the_trainer_that_has_diverged_is_told_from_one_that_is_not_there(told: object, seen: str) -> None:
    assert str(value_of(manifest(1, reward=told), "reward")) == seen


@pytest.mark.parametrize("field", ["changed", "total", "writer_epoch"])
def test_a_manifest_with_a_number_beyond_64_bits_is_damaged(field: str) -> None:
    document = json.loads(manifest(1).to_json())
    assert parsed(document) is not None
    assert parsed({**document, field: 10**400}) is None
    assert parsed({**document, "seconds": {"diff": 1e300}}) is None


def test_rewards_that_cannot_be_counted_with_do_not_count() -> None:
    known: list[float | None] = [0.1 * (step % 3) for step in range(60)]
    assert learning([1e200, *known, 1e308, -1e308]) == learning(known)


def test_a_text_of_megabytes_is_cut() -> None:
    long: Mapping[str, Any] = {"last_error": "E" * 10**6, "state": "S" * 10**6, "run_id": "R" * 10**6}
    game = {
        "messages": [{"role": "R" * 10**6, "content": "C" * 10**6}],
        "numbers": {"environment/reward_" + "n" * 10**6: 1},
    }
    snapshot = showing(
        *chain(3),
        rollout_versions=(1,),
        rollouts={1: (game,)},
        replicas={"A": Answer({**serving(2).document, **long})},
    )
    assert len(rendered(replace(snapshot, problem="P" * 10**6, damaged=("D" * 10**6,)))) < 100_000
