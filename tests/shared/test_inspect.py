import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shared.bits import spec_of
from shared.container import write
from shared.files import Encoding, Label, write_anchor, write_delta
from shared.inspect import LONGEST_TABLE, main
from tests.shared.weights import Weights, changes_between, copies, model, nudge

ANCHOR = Label("demo", 3, "00000000000000aa")
DELTA = Label("demo", 4, "00000000000000bb", 3, "00000000000000aa")
TOTAL = sum(tensor.numel() for tensor in model().values())


def delta_file(path: Path, encoding: Encoding = "packed", old: Weights | None = None) -> Path:
    old = old or model()
    new = copies(old)
    nudge(new, 1)
    write_delta(path, DELTA, changes_between(old, new), TOTAL, encoding)
    return path


def described(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def facts(text: str) -> dict[str, str]:
    pairs = (line.strip().split("  ", 1) for line in text.split("\n\n")[0].splitlines()[1:])
    return {name: value.strip() for name, value in pairs}


@pytest.mark.parametrize("encoding", ["packed", "coo"])
def test_a_delta_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str], encoding: Encoding) -> None:
    path = delta_file(tmp_path / "step_000004.safetensors", encoding)
    text = described(path, capsys)
    found = facts(text)
    assert text.startswith("step_000004.safetensors: delta\n")
    assert found["encoding"] == encoding
    assert (found["run"], found["version"], found["base version"]) == ("demo", "4", "3")
    assert (found["fingerprint"], found["base fingerprint"]) == (DELTA.fingerprint, DELTA.base_fingerprint)
    assert found["checksum"].startswith("holds (")
    assert found["bytes"] == str(path.stat().st_size)
    assert found["bytes per change"] == f"{path.stat().st_size / 15:.2f}"
    assert found["changed"] == f"15 of {TOTAL} elements in 3 tensors"
    assert found["sparsity"] == f"{1 - 15 / TOTAL:.4f}"
    assert "      5    32    0.8438    F32     32  norm.weight" in text


def test_an_empty_delta_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_delta(tmp_path / "file", DELTA, [], TOTAL, "packed")
    found = facts(described(tmp_path / "file", capsys))
    assert found["changed"] == f"0 of {TOTAL} elements in 0 tensors"
    assert found["sparsity"] == "1.0000"
    assert "bytes per change" not in found


def test_an_anchor_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_anchor(tmp_path / "file", ANCHOR, model() | {"scale": torch.tensor(1.0)})
    text = described(tmp_path / "file", capsys)
    assert text.startswith("file: anchor\n")
    assert (facts(text)["run"], facts(text)["version"]) == ("demo", "3")
    assert facts(text)["elements"] == f"{TOTAL + 1} in 4 tensors"
    assert "BF16   64x32  embed.weight" in text
    assert "scalar  scale" in text


def test_a_plain_safetensors_file_is_an_anchor_without_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for metadata in (None, {"format": "pt"}, {"sparse": "False", "model_version": "3"}):
        save_file(model(), tmp_path / "file", metadata)
        text = described(tmp_path / "file", capsys)
        assert text.startswith("file: anchor\n")
        assert facts(text)["label"].startswith("none")
        assert facts(text)["checksum"] == "no checksum"


@pytest.mark.parametrize("metadata", [None, {"sparse": "True", "model_version": "9", "changed_params": "3"}])
def test_a_public_sparse_patch_is_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metadata: dict[str, str] | None
) -> None:
    tensors = {"a.indices": torch.tensor([1, 2, 3], dtype=torch.int32), "a.values": torch.ones(3).bfloat16()}
    save_file(tensors, tmp_path / "file", metadata)
    text = described(tmp_path / "file", capsys)
    assert text.startswith("file: delta\n")
    assert facts(text)["checksum"] == "no checksum"
    assert facts(text)["version"] == ("9" if metadata else "not stated")
    assert facts(text)["changed"] == "3 elements in 1 tensors"
    assert facts(text)["sparsity"].startswith("not known")
    assert "        3   BF16      I32  a" in text


@pytest.mark.parametrize(
    "tensors",
    [
        {"a.indices": torch.zeros(3, dtype=torch.int32)},
        {"a.indices": torch.zeros(3, dtype=torch.int32), "a.values": torch.ones(2)},
        {"a.indices": torch.zeros(3, dtype=torch.int32), "b.values": torch.ones(3)},
        {"a": torch.ones(3)},
    ],
)
def test_a_sparse_patch_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tensors: Weights
) -> None:
    save_file(tensors, tmp_path / "file", {"sparse": "True"})
    assert "not all its tensors are indices with values" in refused(tmp_path / "file", capsys)


@pytest.mark.parametrize("stated", ["4", "", "-1", "many", "9" * 5000])
def test_a_sparse_patch_that_counts_wrongly_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stated: str
) -> None:
    tensors = {"a.indices": torch.tensor([1, 2, 3]), "a.values": torch.ones(3)}
    save_file(tensors, tmp_path / "file", {"sparse": "true", "changed_params": stated})
    assert "file s" in refused(tmp_path / "file", capsys)


def test_a_long_table_is_cut_with_a_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count in (LONGEST_TABLE, LONGEST_TABLE + 1, 100):
        write_anchor(tmp_path / "file", ANCHOR, {f"t{number:03}": torch.ones(1) for number in range(count)})
        lines = described(tmp_path / "file", capsys).splitlines()
        shown = sum("  t" in line and "tensor" not in line for line in lines)
        assert shown == (count if count == LONGEST_TABLE else LONGEST_TABLE - 1)
        assert (f"  ... and {count - shown} more tensors" in lines) == (count > LONGEST_TABLE)


def test_names_that_a_terminal_would_act_on_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_anchor(tmp_path / "file", Label("demo\x1b[2J", 3, "aa"), {"evil\n\x1b[31m": torch.ones(1)})
    text = described(tmp_path / "file", capsys)
    assert "\x1b" not in text
    assert r"evil\n\x1b[31m" in text


def test_a_damaged_file_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = delta_file(tmp_path / "file").read_bytes()
    for damaged in (
        b"",
        whole[:7],
        whole[:-1],
        whole + b"\0",
        whole[:-1] + bytes([whole[-1] ^ 1]),
        whole.replace(b"xxh3_128", b"xxh3_129"),
        whole.replace(b'"version":"4"', b'"version":"5"'),
        b"not a safetensors file",
        b"\xff" * 1000,
    ):
        (tmp_path / "file").write_bytes(damaged)
        assert refused(tmp_path / "file", capsys).startswith("file ")


@pytest.mark.parametrize("fields", [{"tensors": "nonsense"}, {"total": "many"}, {"total": ""}])
def test_a_delta_that_contradicts_itself_under_a_good_checksum_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, str]
) -> None:
    stated = {"encoding": "coo", "tensors": json.dumps([["a", "F32", [4], 2]]), "total": "4"}
    metadata = {**DELTA.metadata(), **stated, **fields}
    tensor = torch.ones(1)
    write(tmp_path / "file", [(spec_of("x", tensor), tensor)], metadata)
    refused(tmp_path / "file", capsys)


def test_what_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refused(tmp_path / "absent", capsys)
    assert "Is a directory" in refused(tmp_path, capsys)


def test_it_runs_as_a_command(tmp_path: Path) -> None:
    path = delta_file(tmp_path / "step_000004.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    command = [sys.executable, "-m", "shared.inspect", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
