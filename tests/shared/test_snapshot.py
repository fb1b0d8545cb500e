from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared import table
from shared.bits import spec_of
from shared.changes import Change, fingerprint_gain
from shared.container import read_header, write
from shared.errors import ChainError, IntegrityError
from shared.files import Label, read_table, write_anchor, write_delta
from shared.fingerprint import fingerprint, to_text
from shared.frames import fold
from shared.snapshot import Snapshot
from shared.types import DataFile, Manifest, now
from tests.shared.weights import Weights, changes_between, copies, model, nudge, same


def manifest_of(weights: Weights, version: int, base: Snapshot | None = None) -> Manifest:
    return Manifest(
        run_id="r",
        version=version,
        kind="anchor" if base is None else "delta",
        files=(DataFile("file", 1, "0" * 32),),
        fingerprint=to_text(fingerprint(weights)),
        changed=1,
        total=1,
        writer_epoch=1,
        created_at=now(),
        base_version=None if base is None else base.version,
        base_fingerprint=None if base is None else to_text(base.fingerprint),
    )


def delta(path: Path, snapshot: Snapshot, new: Weights) -> Manifest:
    manifest = manifest_of(new, (snapshot.version or 0) + 1, snapshot)
    write_delta(path, Label.of(manifest), changes_between(snapshot.tensors, new), 99, "packed")
    return manifest


def nudged(weights: Weights, seed: int = 1) -> Weights:
    new = copies(weights)
    nudge(new, seed)
    return new


def test_an_anchor_is_read_whole(tmp_path: Path) -> None:
    manifest = manifest_of(model(), 3)
    write_anchor(tmp_path / "file", Label.of(manifest), model())
    snapshot = Snapshot.from_anchor(manifest, [tmp_path / "file"])
    assert same(snapshot.tensors, model())
    assert (snapshot.version, to_text(snapshot.fingerprint)) == (3, manifest.fingerprint)


def test_an_anchor_in_shards_is_read_whole(tmp_path: Path) -> None:
    manifest = manifest_of(model(), 3)
    paths = [tmp_path / f"{number}" for number in range(3)]
    for path, (name, tensor) in zip(paths, model().items(), strict=True):
        write_anchor(path, Label.of(manifest), {name: tensor})
    assert same(Snapshot.from_anchor(manifest, paths).tensors, model())
    with pytest.raises(IntegrityError, match="fingerprint"):
        Snapshot.from_anchor(manifest, paths[:2])


def test_an_anchor_of_other_weights_under_a_good_label_is_an_integrity_error(tmp_path: Path) -> None:
    manifest = manifest_of(model(), 3)
    write_anchor(tmp_path / "file", Label.of(manifest), nudged(model()))
    with pytest.raises(IntegrityError, match="anchor 3 has fingerprint"):
        Snapshot.from_anchor(manifest, [tmp_path / "file"])


def test_staging_changes_nothing_and_committing_does(tmp_path: Path) -> None:
    snapshot, new = Snapshot(model(), version=1), nudged(model())
    manifest = delta(tmp_path / "file", snapshot, new)
    changes = snapshot.stage(manifest, tmp_path / "file")
    assert same(snapshot.tensors, model())
    snapshot.commit(2, changes)
    assert same(snapshot.tensors, new)
    assert (snapshot.version, to_text(snapshot.fingerprint)) == (2, manifest.fingerprint)
    snapshot.undo(1, changes)
    assert same(snapshot.tensors, model())
    assert (snapshot.version, to_text(snapshot.fingerprint)) == (1, manifest.base_fingerprint)


def test_tensors_in_any_layout_are_written_in_place(tmp_path: Path) -> None:
    held: Weights = {
        "embed.weight": torch.nn.Parameter(model()["embed.weight"]),
        "layer.weight": model()["layer.weight"].t().contiguous().t(),
        "norm.weight": torch.stack([model()["norm.weight"]] * 2, dim=1)[:, 0],
    }
    objects = dict(held)
    snapshot, new = Snapshot(held, version=1), nudged(model())
    snapshot.commit(2, snapshot.stage(delta(tmp_path / "file", snapshot, new), tmp_path / "file"))
    assert same(held, new)
    assert all(held[name] is tensor for name, tensor in objects.items())


def test_nan_payloads_survive_in_a_layout_that_is_not_contiguous() -> None:
    tensor = torch.zeros(2, 3).t()
    payloads = torch.tensor([0x7F800001, -1, 0x7FC00002], dtype=torch.int32)
    before = torch.zeros(3, dtype=torch.int32)
    snapshot = Snapshot({"a": tensor})
    snapshot.commit(1, [Change(snapshot.specs["a"], torch.tensor([0, 1, 5]), before, payloads)])
    assert tensor.contiguous().view(torch.int32).reshape(-1)[[0, 1, 5]].tolist() == payloads.tolist()


@pytest.mark.parametrize("held", [0, 2, None])
def test_a_delta_on_another_version_is_a_chain_error(tmp_path: Path, held: int | None) -> None:
    manifest = delta(tmp_path / "file", Snapshot(model(), version=1), nudged(model()))
    with pytest.raises(ChainError, match="based on version 1"):
        Snapshot(model(), version=held).stage(manifest, tmp_path / "file")


def test_the_right_delta_on_wrong_weights_is_a_chain_error(tmp_path: Path) -> None:
    manifest = delta(tmp_path / "file", Snapshot(model(), version=1), nudged(model()))
    with pytest.raises(ChainError, match=str(manifest.base_fingerprint)):
        Snapshot(nudged(model(), seed=9), version=1).stage(manifest, tmp_path / "file")


def test_a_delta_that_leads_elsewhere_than_stated_is_an_integrity_error(tmp_path: Path) -> None:
    snapshot = Snapshot(model(), version=1)
    manifest = manifest_of(nudged(model()), 2, snapshot)
    write_delta(tmp_path / "file", Label.of(manifest), changes_between(model(), nudged(model(), 7)), 99, "packed")
    with pytest.raises(IntegrityError, match="leads to fingerprint"):
        snapshot.stage(manifest, tmp_path / "file")
    assert same(snapshot.tensors, model())


@pytest.mark.parametrize("rename", [("norm.weight", "norm.other"), ("[32]", "[4,8]"), ('"F32"', '"I32"')])
def test_a_delta_for_other_tensors_is_an_integrity_error_before_it_is_decoded(
    tmp_path: Path, rename: tuple[str, str]
) -> None:
    snapshot = Snapshot(model(), version=1)
    manifest = delta(tmp_path / "file", snapshot, nudged(model()))
    header = read_header(tmp_path / "file")
    text = table.to_text(read_table(header))
    assert rename[0] in text
    stream = torch.frombuffer(bytearray(fold(text.replace(*rename).encode())), dtype=torch.uint8)
    write(tmp_path / "file", [(spec_of("table", stream), stream)], header.metadata)
    with pytest.raises(IntegrityError, match="changes tensor 'norm"):
        snapshot.stage(manifest, tmp_path / "file")


def test_a_file_of_another_version_is_an_integrity_error(tmp_path: Path) -> None:
    snapshot = Snapshot(model(), version=1)
    manifest = delta(tmp_path / "file", snapshot, nudged(model()))
    with pytest.raises(IntegrityError, match="says version 2"):
        snapshot.stage(replace(manifest, version=3), tmp_path / "file")


def test_a_gain_of_no_change_is_nothing() -> None:
    assert fingerprint_gain([]) == 0
    assert fingerprint_gain(changes_between(model(), model())) == 0
