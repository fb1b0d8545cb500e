"""Content that no publisher writes, in files whose hashes and checksums hold: refused before any weight changes."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.errors import IntegrityError
from shared.files import Encoding, read_delta
from shared.follower import Follower
from shared.reader import RunReader
from shared.types import LARGEST_VERSION, Kind, TensorSpec
from tests.shared.bad_files import (
    ROW,
    Build,
    announce,
    as_tensor,
    coo,
    edited,
    frame,
    good,
    header,
    next_weights,
    offer,
    packed,
    part,
    read,
    relabelled,
    start,
    whole,
    wide,
)
from tests.shared.fake_bucket import MemoryBucket
from tests.shared.weights import Weights, copies, same

ENCODINGS: tuple[Encoding, ...] = ("packed", "coo")
U8 = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def narrow(*places: int) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int32)


# What builds the file, and what the message has to name besides the file: the tensor, and both values.
DELTAS: dict[str, tuple[Build, list[str]]] = {
    # Indices.
    "coo: beyond the end": (coo(embed_indices=narrow(3, 1200)), ["'embed'", "1200 is outside of its 1200"]),
    "coo: negative": (coo(embed_indices=narrow(-1, 5)), ["'embed'", "-1 is outside of its 1200"]),
    "coo: twice": (coo(embed_indices=narrow(5, 5)), ["'embed'", "5 follows index 5"]),
    "coo: falling": (coo(embed_indices=narrow(5, 3)), ["'embed'", "3 follows index 5"]),
    "coo: wide": (coo(embed_indices=torch.tensor([3, 1 << 62])), ["'embed'", f"{1 << 62} is outside of its 1200"]),
    "packed: beyond the end": (
        packed(gaps=bytes([0, 255, 254]), gap_escapes=wide(955)),
        ["'embed'", "1210 is outside of its 1200"],
    ),
    "packed: beyond the end by a remainder": (
        packed(gaps=bytes([9, 2, 0]), remainders=bytes([255, 255, 3])),
        ["'embed'", "1535 is outside of its 1200"],
    ),
    "packed: a gap out of the tensor": (
        packed(gaps=bytes([0, 255, 0]), gap_escapes=wide((1 << 63) - 1)),
        ["'embed'", f"{(1 << 63) - 1} leads out of its 1200"],
    ),
    "packed: a gap that would wrap to 0": (
        packed(gaps=bytes([9, 255, 0]), gap_escapes=wide(1 << 55), remainders=bytes(3)),
        ["'embed'", f"{1 << 64} leads out of its 1200"],
    ),
    "packed: a gap that would wrap to -1": (
        packed(gaps=bytes([0, 0, 255]), gap_escapes=wide((1 << 64) - 1)),
        ["'embed'", f"{(1 << 64) - 1} leads out of its 1200"],
    ),
    "packed: a shift beyond the tensor": (
        packed(gaps=bytes([10, 3, 1]), remainders=bytes(3)),
        ["'embed'", "shift of 10", "2 changes of 1200"],
    ),
    "packed: a shift beyond all numbers": (
        packed(gaps=bytes([255, 3, 1]), remainders=bytes(64)),
        ["'embed'", "shift of 255", "2 changes of 1200"],
    ),
    # The table, against what is held.
    "unknown tensor": (
        coo([["other", "BF16", [40, 30], 2]]),
        ["'other'", r"BF16 \[40, 30\]", "no tensor of that name"],
    ),
    "other dtype": (coo([["embed", "F16", [40, 30], 2]]), ["'embed'", r"F16 \[40, 30\]", r"BF16 \[40, 30\]"]),
    "other shape": (coo([["embed", "BF16", [1200], 2]]), ["'embed'", r"BF16 \[1200\]", r"BF16 \[40, 30\]"]),
    "zero-length tensor": (coo([["none", "BF16", [0, 4], 1]]), ["'none'", "1 changes", "0 elements"]),
    "nothing changed": (coo([["embed", "BF16", [40, 30], 0]]), ["'embed'", "0 changes", "1200 elements"]),
    "more changes than elements": (coo([[*ROW[:3], 1201]]), ["'embed'", "1201 changes", "1200 elements"]),
    "changes beyond counting": (coo([[*ROW[:3], 10**30]]), ["'embed'", "10000", "1200 elements"]),
    "more elements than memory": (
        packed([["embed", "BF16", [1 << 59], 1 << 58]]),
        ["'embed'", str(1 << 59), "40, 30"],
    ),
    "shape beyond counting": (packed([["embed", "BF16", [1 << 70], 1]]), ["too large"]),
    "listed twice": (coo([ROW, ROW]), ["'embed'", "twice"]),
    "dtype of no format": (coo([["embed", "F4", [40, 30], 2]]), ["table", "F4"]),
    "a count of another kind": (coo([[*ROW[:3], 2.0]]), ["'embed'", "2.0"]),
    "a table that is no list": (relabelled(coo(), tensors="{}"), ["table", "dict"]),
    "a table with NaN": (relabelled(coo(), tensors='[["embed","BF16",[40,30],NaN]]'), ["table", "NaN"]),
    "a table with a doubled key": (relabelled(coo(), tensors='[{"a":1,"a":2}]'), ["table", "twice"]),
    # The data, against the table.
    "coo: no values": (coo(embed_values=None), ["'embed.values'", "missing"]),
    "coo: a tensor too many": (coo(other_values=torch.ones(2)), ["'other.values'", "not in the table"]),
    "coo: values of another dtype": (coo(embed_values=torch.ones(2)), ["'embed'", "2 BF16", r"F32 \[2\]"]),
    "coo: one value": (coo(embed_values=torch.ones(1).bfloat16()), ["'embed'", "2 BF16", r"BF16 \[1\]"]),
    "coo: indices as floats": (coo(embed_indices=torch.tensor([3.0, 5.0])), ["'embed'", r"F32 \[2\]"]),
    "packed: no table": (packed(table=None), ["'table'", "not a zstd frame"]),
    "packed: a table of another kind": (packed(table=b"{}"), ["table", "dict"]),
    "packed: a table that is no text": (packed(table=b"\xff"), ["table", "utf-8"]),
    "packed: a table longer than of all tensors": (packed(table=bytes(10_000)), ["'table'", "10000 bytes", "at most"]),
    "coo: a table longer than of all tensors": (
        relabelled(coo(), tensors=" " * 10_000),
        ["10000 bytes", "at most"],
    ),
    "packed: no gaps": (packed(gaps=None), ["'gaps'", "missing", "3 bytes"]),
    "packed: no differences": (packed(differences=None), ["'differences'", "missing", "1 bytes"]),
    "packed: differences too many": (packed(differences=b"\2\0"), ["'differences'", "2 bytes", "1 are expected"]),
    "packed: escapes of another size": (packed(difference_escapes_4=bytes(8)), ["'difference_escapes_4'"]),
    "packed: an escape too many": (packed(gap_escapes=bytes(8)), ["'gap_escapes'", "there", "0 bytes"]),
    "packed: an escape too few": (packed(gaps=bytes([0, 255, 0])), ["'gap_escapes'", "missing", "8 bytes"]),
    "packed: a large difference too few": (
        packed(differences=bytes([0x2F])),
        ["'difference_escapes_2'", "missing", "2 bytes"],
    ),
    "packed: no remainders": (packed(gaps=bytes([9, 2, 0])), ["'remainders'", "missing", "3 bytes"]),
    "packed: remainders of no gap": (packed(remainders=bytes(1)), ["'remainders'", "there", "0 bytes"]),
    "packed: a stream that is no bytes": (packed(gaps=torch.tensor([3, 1])), ["'gaps'", r"I64 \[2\]", "U8"]),
    "packed: no frame": (packed(gaps=as_tensor(b"\3\1")), ["'gaps'", "zstd"]),
    "packed: trailing bytes": (packed(gaps=as_tensor(frame(b"\0\3\1") + b"\0")), ["'gaps'", "zstd"]),
    "packed: an empty frame that hides bytes": (
        packed(gap_escapes=as_tensor(frame(b"") + bytes(99))),
        ["'gap_escapes'"],
    ),
    "packed: a bomb": (packed(gaps=bytes(64 << 20)), ["'gaps'", f"{64 << 20} bytes", "3 are expected"]),
    # The file.
    "unknown encoding": (relabelled(coo(), encoding="zip"), ["'zip'", "packed, coo"]),
    "newer format": (relabelled(coo(), format="3"), ["format 3", "format 2"]),
    "another version": (relabelled(coo(), version="2"), ["version 2", "says 1"]),
    "another base": (relabelled(coo(), base_fingerprint="f" * 16), ["base_fingerprint f{16}"]),
    "an anchor's label": (relabelled(coo(), kind="anchor"), ["kind anchor", "says delta"]),
}

FILES: dict[str, tuple[Callable[[Build], Build], list[str]]] = {
    "another run": (lambda build: relabelled(build, run_id="s"), ["run_id s", "says r"]),
    "trailing bytes": (lambda build: edited(build, lambda raw: raw + b"\0"), [r"has \d+ bytes", r"describes \d+"]),
    "cut short": (lambda build: edited(build, lambda raw: raw[:-1]), [r"has \d+ bytes", r"describes \d+"]),
    "one bit": (lambda build: edited(build, lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])), ["damaged"]),
    "no checksum": (lambda build: edited(build, lambda raw: raw.replace(b"xxh3_128", b"xxh3_129")), ["no checksum"]),
    "empty": (lambda build: edited(build, lambda raw: b""), ["has 0 bytes"]),
    "a header longer than the file": (lambda _: header({}, length=1 << 20), [r"has \d+ bytes", str(1 << 20)]),
    "an absurd header": (lambda _: header({}, length=(1 << 64) - 1), [str((1 << 64) - 1)]),
    "a doubled key": (lambda _: header(b'{"__metadata__":{},"__metadata__":{}}'), ["twice"]),
    "NaN": (lambda _: header(b'{"a":NaN}'), ["NaN"]),
    "overlap": (lambda _: header({"a": U8, "b": {**U8, "data_offsets": [2, 6]}}), ["'b'", "byte 2", "4 was expected"]),
    "a gap": (lambda _: header({"a": {**U8, "data_offsets": [3, 7]}}), ["'a'", "byte 3", "0 was expected"]),
    "a shape that is not its bytes": (lambda _: header({"a": {**U8, "shape": [5]}}), ["'a'", r"\(5,\)", r"\[0, 4\]"]),
    "a dtype of no format": (lambda _: header({"a": {**U8, "dtype": "F4"}}), ["'a'", "F4"]),
}


def check_refused(call: Callable[[], object], says: list[str]) -> None:
    with pytest.raises(IntegrityError) as caught:
        call()
    for text in says:
        assert re.search(text, str(caught.value)), f"{text!r} is not in: {caught.value}"
    assert "\n" not in str(caught.value)


def check_not_followed(bucket: MemoryBucket, says: list[str]) -> None:
    """From nothing, from the version before, and from unknown weights."""
    starts: list[Weights] = [{}, start(), {**start(), "steps": torch.tensor(0)}]
    for weights in starts:
        before = copies(weights)
        catch_up = partial(Follower(bucket, "r").catch_up, weights)
        check_refused(catch_up, says)
        check_refused(catch_up, says)  # asking again does not help
        assert same(weights, before)


@pytest.mark.parametrize("build", [*map(good, ENCODINGS), coo(), packed()])
def test_what_the_bad_files_are_made_of_is_good(tmp_path: Path, build: Build) -> None:
    read(offer(tmp_path, "delta", build))


@pytest.mark.parametrize(
    ("kind", "builds"), [("delta", [good("packed")]), ("delta", [good("coo")]), ("anchor", [whole()])]
)
def test_a_good_version_is_followed_bit_for_bit(tmp_path: Path, kind: Kind, builds: list[Build]) -> None:
    """NaN payloads, minus zero and zero-length tensors included."""
    bucket = offer(tmp_path, kind, *builds).bucket
    turned = {**start(), "embed": start()["embed"].t().contiguous().t()}
    for weights in ({}, start(), turned):
        Follower(bucket, "r").catch_up(weights)
        assert same(weights, next_weights())


@pytest.mark.parametrize("name", DELTAS)
def test_a_bad_delta_is_refused(tmp_path: Path, name: str) -> None:
    build, says = DELTAS[name]
    version = offer(tmp_path, "delta", build)
    check_refused(lambda: read(version), ["step_000001", *says])
    check_not_followed(version.bucket, ["step_000001", *says])


@pytest.mark.parametrize("kind", ["delta", "anchor"])
@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_of_either_kind_is_refused(tmp_path: Path, name: str, kind: Kind) -> None:
    damage, says = FILES[name]
    version = offer(tmp_path, kind, damage(coo() if kind == "delta" else whole()))
    check_refused(lambda: read(version), ["step_000001", *says])
    check_not_followed(version.bucket, ["step_000001", *says])


def test_a_tensor_in_two_files_of_an_anchor_is_refused(tmp_path: Path) -> None:
    version = offer(tmp_path, "anchor", part("embed", "nan"), part("nan", "none", "steps"))
    says = ["'nan'", "twice", "step_000001-00001-of-00002", "step_000001-00002-of-00002"]
    check_refused(lambda: read(version), says)
    check_not_followed(version.bucket, says)


@pytest.mark.parametrize(
    "builds",
    [
        [part("embed", "nan", "none")],
        [part("embed", "nan", "steps")],
        [part("embed", "nan"), part("none")],
        [whole(other=torch.ones(1))],
        [whole(other=torch.empty(0))],
        [whole(steps=torch.tensor(8, dtype=torch.int32))],
        [whole(steps=torch.tensor([8]))],
        [whole(steps=torch.tensor(9))],
        [whole(none=torch.empty(4, 0, dtype=torch.bfloat16))],
    ],
)
def test_an_anchor_of_other_tensors_is_refused(tmp_path: Path, builds: list[Build]) -> None:
    version = offer(tmp_path, "anchor", *builds)
    read(version)  # well formed: only counting tells
    check_not_followed(version.bucket, ["step_000001", "anchor 1", version.manifest.fingerprint])


@pytest.mark.parametrize("build", [coo(), packed()])
def test_a_delta_that_leads_elsewhere_is_refused(tmp_path: Path, build: Build) -> None:
    version = offer(tmp_path, "delta", build)
    check_not_followed(version.bucket, ["step_000001", "leads to", version.manifest.fingerprint])


def test_gaps_within_a_tensor_whose_sum_overflows_are_refused(tmp_path: Path) -> None:
    spec = TensorSpec("huge", "BF16", ((1 << 60) - 1,))
    count, gap = 40, (1 << 60) - 2
    table = [["huge", "BF16", [spec.numel], count]]
    gaps = bytes([0] + [255] * count)
    build = packed(table, gaps=gaps, gap_escapes=wide(*[gap] * count), differences=bytes(count // 2))
    version = offer(tmp_path, "delta", build)
    says = ["step_000001", "'huge'", "follows index"]
    check_refused(lambda: read_delta(version.manifest, version.files[0], {"huge": spec}), says)


MANIFESTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "newer format": ({"format": 3}, ["format 3", "format 2"]),
    "newer format with other fields": ({"format": 3, "kind": "patch", "run_id": 5}, ["format 3", "format 2"]),
    "a version beyond the largest": ({"base_version": 10**9}, ["base_version", str(10**9), str(LARGEST_VERSION)]),
    "a file elsewhere": ({"path": "s/deltas/step_000001.safetensors"}, ["s/deltas"]),
    "a file above": ({"path": "r/deltas/../../s/deltas/step_000001.safetensors"}, [r"\.\./"]),
    "an absolute path": ({"path": "/etc/passwd"}, ["/etc/passwd"]),
    "another version's file": ({"path": "r/deltas/step_000002.safetensors"}, ["step_000002", "version 1"]),
    "a negative count": ({"changed": -1}, ["changed", "-1"]),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_bad_manifest_is_refused(tmp_path: Path, name: str) -> None:
    fields, says = MANIFESTS[name]
    bucket = offer(tmp_path, "delta", good("packed")).bucket
    stored = json.loads(bucket.stored["r/manifests/000001.json"])
    if "path" in fields:
        stored["files"][0]["path"] = fields["path"]
    announce(bucket, json.dumps({**stored, **fields}).encode())
    check_refused(lambda: RunReader(bucket, "r").manifest(1), ["r/manifests/000001.json", *says])
    check_not_followed(bucket, ["r/manifests/000001.json", *says])


@pytest.mark.parametrize("text", ['"total": NaN', '"total": Infinity', '"total": 1e999', '"changed": 6, "changed": 6'])
def test_json_that_means_nothing_or_two_things_is_refused(tmp_path: Path, text: str) -> None:
    bucket = offer(tmp_path, "delta", good("packed")).bucket
    raw = bucket.stored["r/manifests/000001.json"].decode()
    key = text.partition(":")[0]
    announce(bucket, re.sub(rf"{key}: \d+", text, raw).encode())
    check_not_followed(bucket, ["r/manifests/000001.json", "JSON"])


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("r/run.json", {"format": 3, "base": None}, ["format 3", "format 2"]),
        ("r/latest.json", {"version": 10**9}, ["version", str(10**9), str(LARGEST_VERSION)]),
        ("r/latest.json", {"manifest": "../s/manifests/000001.json"}, [r"\.\./s"]),
        ("r/latest.json", {"run_id": "s"}, ["run 's'"]),
    ],
)
def test_a_bad_run_file_or_pointer_is_refused(
    tmp_path: Path, path: str, fields: dict[str, Any], says: list[str]
) -> None:
    bucket = offer(tmp_path, "delta", good("packed")).bucket
    bucket.edit(path, **fields)
    check_not_followed(bucket, [path, *says])
