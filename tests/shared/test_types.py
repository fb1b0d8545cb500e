import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import IntegrityError, SyncError
from shared.types import Base, DataFile, Manifest, Pointer, Run, TensorSpec, checked_run_id, now
from tests.shared.weights import property_test

FINGERPRINT, HASH = "0123456789abcdef", "0123456789abcdef" * 2

RUN = Run("r", now(), "user/model", Base("user/model", "c0ffee", FINGERPRINT))
DELTA = Manifest(
    run_id="r",
    version=3,
    kind="delta",
    files=(DataFile("r/deltas/step_000003.safetensors", 10, HASH),),
    fingerprint=FINGERPRINT,
    changed=2,
    total=8,
    writer_epoch=1,
    created_at=now(),
    base_version=1,
    base_fingerprint=FINGERPRINT,
    seconds={"diff": 0.5, "encode": 1},
    trainer={"reward": 0.25, "nested": {"list": [1, "two", None]}},
)
ANCHOR = Manifest("r", 0, "anchor", (), FINGERPRINT, 8, 8, 1, now())
POINTER = Pointer("r", 3, "r/manifests/000003.json", HASH)

Document = Run | Manifest | Pointer
DOCUMENTS: dict[str, Document] = {"run": RUN, "delta": DELTA, "anchor": ANCHOR, "pointer": POINTER}


def reparsed(document: Document, fields: Any) -> Document:
    return type(document).from_json(json.dumps(fields).encode(), "the file")


def fields_of(document: Document) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(document.to_json())
    return fields


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_read_back_equal(name: str) -> None:
    assert type(DOCUMENTS[name]).from_json(DOCUMENTS[name].to_json(), "the file") == DOCUMENTS[name]


def test_a_manifest_states_path_and_bytes() -> None:
    assert (fields_of(DELTA)["path"], fields_of(DELTA)["nbytes"]) == ("r/deltas/step_000003.safetensors", 10)
    assert (fields_of(ANCHOR)["path"], fields_of(ANCHOR)["nbytes"]) == ("", 0)


OPTIONAL = {("anchor", "base_version"), ("anchor", "base_fingerprint"), ("pointer", "writer_epoch")}
FIELDS = [(name, key) for name, document in DOCUMENTS.items() for key in fields_of(document)]


@pytest.mark.parametrize(("name", "key"), [field for field in FIELDS if field not in OPTIONAL])
def test_a_missing_field_is_an_integrity_error_that_names_file_and_field(name: str, key: str) -> None:
    fields = fields_of(DOCUMENTS[name])
    del fields[key]
    with pytest.raises(IntegrityError, match=rf"the file.*{key}.*nothing"):
        reparsed(DOCUMENTS[name], fields)


def acceptable(name: str, key: str, value: object) -> bool:
    free = {"model": str, "manifest": str, "trainer": dict}
    if key == "created_at" and name != "run":
        return isinstance(value, str)
    return isinstance(value, free.get(key, ())) or (name, key, value) in (
        ("anchor", "path", ""),
        ("anchor", "files", []),
    )


@pytest.mark.parametrize(("name", "key"), [field for field in FIELDS if field not in OPTIONAL])
def test_a_field_of_a_wrong_kind_is_an_integrity_error(name: str, key: str) -> None:
    for value in (None, True, -1, 1.5, "", "x" * 200, "7!", [], [1], {"a": True}, {"a": "b"}):
        if not acceptable(name, key, value):
            with pytest.raises(IntegrityError, match="the file"):
                reparsed(DOCUMENTS[name], {**fields_of(DOCUMENTS[name]), key: value})


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("run", {"run_id": "../r"}),
        ("run", {"run_id": "r/s"}),
        ("run", {"run_id": "r\n"}),
        ("run", {"created_at": "tomorrow"}),
        ("run", {"created_at": "9999-01-01"}),
        ("run", {"format": 3}),
        ("run", {"base": {"repo": "", "commit": ""}}),
        ("run", {"base": {"repo": 5, "commit": "", "fingerprint": ""}}),
        ("run", {"base": {"repo": "", "commit": "", "fingerprint": "XYZ"}}),
        ("delta", {"kind": "patch"}),
        ("delta", {"fingerprint": FINGERPRINT.upper()}),
        ("delta", {"base_version": 3}),
        ("delta", {"base_version": 4}),
        ("delta", {"base_version": None}),
        ("delta", {"base_fingerprint": None}),
        ("delta", {"files": []}),
        ("delta", {"files": [1]}),
        ("delta", {"files": [{}]}),
        ("delta", {"files": 2 * fields_of(DELTA)["files"], "nbytes": 20}),
        ("delta", {"path": "r/deltas/other"}),
        ("delta", {"nbytes": 11}),
        ("delta", {"changed": 9}),
        ("delta", {"format": 0}),
        ("delta", {"seconds": {"diff": "fast"}}),
        ("pointer", {"manifest_xxh3": HASH[:-1]}),
        ("pointer", {"version": 1e3}),
    ],
)
def test_a_field_of_a_wrong_value_is_an_integrity_error(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="the file"):
        reparsed(DOCUMENTS[name], {**fields_of(DOCUMENTS[name]), **fields})


@pytest.mark.parametrize("kind", [Run, Manifest, Pointer])
@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"[]", b"1", b'"r"', b"\xff\xff", b"[" * 100_000, b'{"a":' * 990])
def test_what_is_no_object_is_an_integrity_error(kind: type[Document], raw: bytes) -> None:
    with pytest.raises(IntegrityError, match="the file"):
        kind.from_json(raw, "the file")


@pytest.mark.parametrize("depth", range(900, 1000, 7))
def test_values_nested_deeply_are_an_integrity_error(depth: int) -> None:
    raw = b'{"run_id": ' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(IntegrityError, match="the file"):
        Pointer.from_json(raw, "the file")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_cut_at_any_length_is_an_integrity_error(name: str) -> None:
    raw = DOCUMENTS[name].to_json()
    for length in range(len(raw) - 2):
        with pytest.raises(IntegrityError):
            type(DOCUMENTS[name]).from_json(raw[:length], "the file")


@property_test
@given(st.sampled_from(sorted(DOCUMENTS)), st.data())
def test_a_damaged_document_is_read_or_an_integrity_error(name: str, data: st.DataObject) -> None:
    raw = bytearray(DOCUMENTS[name].to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        document = type(DOCUMENTS[name]).from_json(bytes(raw), "the file")
    except IntegrityError:
        return
    assert type(document).from_json(document.to_json(), "the file") == document


def test_numbers_that_are_not_finite_are_written_as_text() -> None:
    numbers = {"loss": float("nan"), "deep": [{"x": float("-inf")}], "fine": 1.5}
    manifest = Manifest(**{**vars(DELTA), "trainer": numbers})
    raw = manifest.to_json()
    assert b"NaN" not in raw and b"Infinity" not in raw
    read = Manifest.from_json(raw, "the file").trainer
    assert read == {"loss": "nan", "deep": [{"x": "-inf"}], "fine": 1.5}


def test_what_json_cannot_hold_is_a_sync_error() -> None:
    with pytest.raises(SyncError, match="JSON"):
        Manifest(**{**vars(DELTA), "trainer": {"policy": object()}}).to_json()


@pytest.mark.parametrize("run_id", ["r", "2026-01-01_demo.v2", "A" * 96])
def test_a_plain_run_id_is_taken(run_id: str) -> None:
    assert checked_run_id(run_id) == run_id


@pytest.mark.parametrize("run_id", ["", "a/b", "../a", "..", ".", ".a", "a b", "a\n", "a\0", "\u00e9", "A" * 97])
def test_any_other_run_id_is_refused(run_id: str) -> None:
    with pytest.raises(SyncError, match="run id"):
        checked_run_id(run_id)


def test_sparsity_is_the_share_left_unchanged() -> None:
    assert DELTA.sparsity == 0.75
    assert ANCHOR.sparsity == 0
    assert Manifest(**{**vars(DELTA), "changed": 0, "total": 0}).sparsity == 1


def test_the_elements_of_a_shape_are_counted_without_limit() -> None:
    assert TensorSpec("a", "BF16", ()).numel == 1
    assert TensorSpec("a", "BF16", (3, 0)).numel == 0
    assert TensorSpec("a", "BF16", (1 << 20, 1 << 20)).numel == 1 << 40


def test_times_sort_as_text() -> None:
    times = [now() for _ in range(50)]
    assert times == sorted(times)
    assert {len(time) for time in times} == {32}
