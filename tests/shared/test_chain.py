import pytest

from shared.chain import Held, find_path
from shared.errors import ChainError
from shared.types import DataFile, Kind, Manifest, now


def text(number: int) -> str:
    return f"{number:016x}"


def version(number: int, kind: Kind, base: int | None = None, *, files: bool = True, base_text: str = "") -> Manifest:
    path = f"r/{kind}s/step_{number:06d}.safetensors"
    return Manifest(
        run_id="r",
        version=number,
        kind=kind,
        files=(DataFile(path, 1, "0" * 32),) if files else (),
        fingerprint=text(number),
        changed=1,
        total=1,
        writer_epoch=1,
        created_at=now(),
        base_version=base,
        base_fingerprint=None if base is None else base_text or text(base),
    )


RUN = {
    manifest.version: manifest
    for manifest in (
        version(0, "anchor"),
        version(1, "delta", 0),
        version(4, "delta", 1),
        version(6, "anchor"),
        version(7, "delta", 6),
    )
}


def versions(target: int, held: Held | None) -> list[int]:
    return [step.version for step in find_path(RUN[target], held, RUN.__getitem__)]


def test_nothing_leads_to_what_is_held() -> None:
    assert versions(4, Held(4, text(4))) == []


def test_deltas_connect_from_what_is_held() -> None:
    assert versions(4, Held(1, text(1))) == [4]
    assert versions(4, Held(0, text(0))) == [1, 4]


@pytest.mark.parametrize("held", [None, Held(1, text(99)), Held(3, text(3)), Held(4, text(1)), Held(7, text(7))])
def test_without_a_connection_the_path_starts_at_an_anchor(held: Held | None) -> None:
    assert versions(4, held) == [0, 1, 4]


def test_the_newest_anchor_on_the_way_is_taken() -> None:
    assert versions(7, None) == [6, 7]
    assert versions(7, Held(4, text(4))) == [6, 7]
    assert versions(6, Held(4, text(4))) == [6]


def test_a_base_held_by_reference_has_to_be_had_elsewhere() -> None:
    run = {0: version(0, "anchor", files=False), 1: version(1, "delta", 0)}
    assert find_path(run[1], Held(0, text(0)), run.__getitem__) == [run[1]]
    with pytest.raises(ChainError, match="base model"):
        find_path(run[1], None, run.__getitem__)


def test_a_base_with_another_fingerprint_is_no_base() -> None:
    run = {0: version(0, "anchor"), 1: version(1, "delta", 0, base_text=text(5))}
    with pytest.raises(ChainError, match=text(5)):
        find_path(run[1], None, run.__getitem__)


def test_a_delta_without_a_base_version_leads_nowhere() -> None:
    with pytest.raises(ChainError, match="no base version"):
        find_path(version(1, "delta"), None, RUN.__getitem__)


def test_a_missing_manifest_is_the_error_of_who_looks_it_up() -> None:
    def missing(number: int) -> Manifest:
        raise ChainError(f"no {number}")

    with pytest.raises(ChainError, match="no 1"):
        find_path(RUN[4], None, missing)
