from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.chain import Held, find_paths
from shared.errors import BucketError, ChainError, IntegrityError
from shared.types import DataFile, Kind, Manifest, now
from tests.shared.weights import property_test

ANCHOR_BYTES, DELTA_BYTES = 100, 10


def text(number: int) -> str:
    return f"{number:016x}"


def version(
    number: int, kind: Kind, base: int | None = None, *, nbytes: int | None = None, base_text: str = ""
) -> Manifest:
    """`nbytes` 0: by reference."""
    size = (ANCHOR_BYTES if kind == "anchor" else DELTA_BYTES) if nbytes is None else nbytes
    return Manifest(
        run_id="r",
        version=number,
        kind=kind,
        files=(DataFile(f"r/{kind}s/step_{number:06d}.safetensors", size, "0" * 32),) if size else (),
        fingerprint=text(number),
        changed=1,
        total=1,
        writer_epoch=1,
        created_at=now(),
        base_version=base,
        base_fingerprint=None if base is None else base_text or text(base),
    )


@dataclass
class Run:
    """Manifests, extra anchors and errors by version; `asked` is what was looked up."""

    manifests: dict[int, Manifest]
    anchors: dict[int, Manifest] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def manifest(self, version: int) -> Manifest:
        self.asked.append(version)
        if version in self.errors:
            raise self.errors[version]
        if version not in self.manifests:
            raise ChainError(f"no manifest {version}")
        return self.manifests[version]

    def anchor(self, version: int) -> Manifest | None:
        if -version in self.errors:
            raise self.errors[-version]
        return self.anchors.get(version)


def run_of(*manifests: Manifest, anchors: tuple[int, ...] = (), anchor_bytes: int = ANCHOR_BYTES) -> Run:
    extra = {number: version(number, "anchor", nbytes=anchor_bytes) for number in anchors}
    return Run({manifest.version: manifest for manifest in manifests}, extra)


def chain(length: int, anchors: tuple[int, ...] = (), **sizes: int) -> Run:
    """Anchor 0 and a delta for each further version."""
    steps = (version(number, "delta", number - 1) for number in range(1, length))
    return run_of(version(0, "anchor"), *steps, anchors=anchors, **sizes)


def deltas(first: int, last: int) -> list[str]:
    return [f"d{number}" for number in range(first, last + 1)]


def paths(run: Run, target: int, held: Held | None = None) -> list[list[str]]:
    """As "a5" for an anchor and "d6" for a delta."""
    found = find_paths(run.manifests[target], held, run)
    return [[f"{step.kind[0]}{step.version}" for step in path] for path in found]


def holds(number: int) -> Held:
    return Held(number, text(number))


def test_nothing_is_to_be_loaded_for_what_is_held() -> None:
    assert paths(chain(3), 2, holds(2)) == [[]]


def test_deltas_connect_from_what_is_held_and_the_anchor_comes_next() -> None:
    assert paths(chain(4), 3, holds(1)) == [["d2", "d3"], ["a0", "d1", "d2", "d3"]]
    assert paths(chain(4), 3, holds(2))[0] == ["d3"]


def test_versions_may_leave_gaps() -> None:
    run = run_of(version(0, "anchor"), version(4, "delta", 0), version(9, "delta", 4))
    assert paths(run, 9, holds(0)) == [["d4", "d9"], ["a0", "d4", "d9"]]


@pytest.mark.parametrize("held", [None, Held(1, text(99)), holds(30), Held(3, text(1)), holds(7)])
def test_without_a_connection_a_path_starts_at_an_anchor(held: Held | None) -> None:
    assert paths(chain(4), 3, held) == [["a0", "d1", "d2", "d3"]]


def test_an_anchor_of_the_chain_ends_the_walk() -> None:
    run = run_of(version(0, "anchor"), version(1, "delta", 0), version(2, "anchor"), version(3, "delta", 2))
    assert paths(run, 3, holds(1)) == [["a2", "d3"]]
    assert paths(run, 2, holds(1)) == [["a2"]]
    assert run.asked == [2]


def test_an_extra_anchor_shortens_the_way_and_the_one_before_is_kept_in_reserve() -> None:
    run = chain(9, anchors=(3, 6))
    assert paths(run, 8) == [["a6", "d7", "d8"], ["a3", "d4", "d5", "d6", "d7", "d8"]]
    assert 2 not in run.asked
    assert paths(run, 6) == [["a6"], ["a3", "d4", "d5", "d6"]]
    assert paths(run, 5) == [["a3", "d4", "d5"], ["a0", "d1", "d2", "d3", "d4", "d5"]]


def test_deltas_on_what_is_held_go_before_anchors_that_are_not_smaller() -> None:
    run = chain(9, anchors=(3, 6))
    assert paths(run, 8, holds(5)) == [["d6", "d7", "d8"], ["a6", "d7", "d8"], ["a3", "d4", "d5", "d6", "d7", "d8"]]
    assert paths(run, 8, holds(0))[0] == deltas(1, 8)


def test_an_anchor_smaller_than_the_deltas_goes_first() -> None:
    run = chain(9, anchors=(8,), anchor_bytes=25)
    assert paths(run, 8, holds(5)) == [["a8"], ["d6", "d7", "d8"], ["a0", *deltas(1, 8)]]
    assert paths(run, 8, holds(6)) == [["d7", "d8"], ["a8"], ["a0", *deltas(1, 8)]]


def test_deltas_on_what_is_held_win_a_tie() -> None:
    assert paths(chain(9, anchors=(8,), anchor_bytes=20), 8, holds(6))[:2] == [["d7", "d8"], ["a8"]]


def test_the_walk_ends_when_nothing_cheaper_can_come() -> None:
    run = chain(50, anchors=(40, 44))
    assert paths(run, 49, holds(2)) == [["a44", *deltas(45, 49)], ["a40", *deltas(41, 49)]]
    assert min(run.asked) == 34  # fifteen deltas are as many bytes as the newest anchor with five


def test_a_version_by_reference_is_no_start_unless_it_is_held() -> None:
    run = run_of(version(0, "anchor", nbytes=0), version(1, "delta", 0))
    assert paths(run, 1, holds(0)) == [["d1"]]
    with pytest.raises(
        ChainError, match=f"version 1: version 0 is not in the bucket: load the run's base model .*{text(0)}"
    ):
        paths(run, 1)
    run.anchors[0] = version(0, "anchor")
    assert paths(run, 1) == [["a0", "d1"]]


def test_a_version_by_reference_that_is_the_target_is_nothing_to_load_or_not_to_be_had() -> None:
    run = run_of(version(0, "anchor", nbytes=0))
    assert paths(run, 0, holds(0)) == [[]]
    with pytest.raises(ChainError, match="base model"):
        paths(run, 0)


def test_a_base_with_another_fingerprint_is_no_base() -> None:
    run = run_of(version(0, "anchor"), version(1, "delta", 0, base_text=text(5)))
    with pytest.raises(ChainError, match=f"{text(5)}.*{text(0)}"):
        paths(run, 1)
    assert paths(run, 1, holds(1)) == [[]]
    run.anchors[1] = version(1, "anchor")
    assert paths(run, 1, holds(0)) == [["a1"]]


def test_a_delta_without_a_base_version_leads_nowhere() -> None:
    with pytest.raises(ChainError, match="no base version"):
        find_paths(version(1, "delta"), None, chain(2))


@pytest.mark.parametrize("error", [ChainError("no 2"), IntegrityError("2 is damaged")])
def test_a_manifest_that_cannot_be_had_is_the_reason_only_when_nothing_was_found(
    error: Exception,
) -> None:
    run = chain(5, anchors=(3,))
    run.errors[2] = error
    assert paths(run, 4) == [["a3", "d4"]]
    assert paths(run, 4, holds(3)) == [["d4"], ["a3", "d4"]]
    run.anchors.clear()
    with pytest.raises(type(error), match=f"nothing leads to version 4: {error}"):
        paths(run, 4)


def test_a_bucket_that_fails_is_raised_at_once() -> None:
    for place in (2, -3):
        run = chain(5, anchors=(4,))
        run.errors[place] = BucketError("gone")
        with pytest.raises(BucketError, match="gone"):
            paths(run, 4)


def test_a_damaged_extra_anchor_never_blocks_the_deltas() -> None:
    run = chain(4, anchors=(2,))
    run.errors[-2] = IntegrityError("2.anchor.json is damaged")
    assert paths(run, 3, holds(2)) == [["d3"], ["a0", "d1", "d2", "d3"]]
    run.manifests[0] = replace(run.manifests[0], files=())
    with pytest.raises(ChainError, match="base model.*; 2.anchor.json is damaged"):
        paths(run, 3)


@property_test
@given(st.data())
def test_every_path_connects_and_the_cheapest_of_all_is_first(data: st.DataObject) -> None:
    """Against a search of all starts, in chains of any sizes."""
    length = data.draw(st.integers(2, 12))
    size = st.integers(1, 50)
    manifests = [version(0, "anchor", nbytes=data.draw(size))]
    manifests += [version(n, "delta", n - 1, nbytes=data.draw(size)) for n in range(1, length)]
    extra = {n: version(n, "anchor", nbytes=data.draw(size)) for n in data.draw(st.sets(st.integers(0, length - 1)))}
    run, target = Run(dict(enumerate(manifests)), extra), length - 1
    held = data.draw(st.none() | st.integers(0, target - 1).map(holds))
    found = find_paths(manifests[target], held, run)
    for path in found:
        start = path[0].version if path[0].kind == "anchor" else path[0].version - 1
        assert path[0].kind == "anchor" or start == (held.version if held else None)
        assert path[1 if path[0].kind == "anchor" else 0 :] == manifests[start + 1 :]
    costs = [sum(step.nbytes for step in path) for path in found]
    assert costs == sorted(costs)
    starts = sorted([(0, manifests[0].nbytes), *((n, anchor.nbytes) for n, anchor in extra.items())], reverse=True)[:2]
    starts += [(held.version, 0)] if held else []
    assert costs[0] == min(nbytes + sum(step.nbytes for step in manifests[n + 1 :]) for n, nbytes in starts)
