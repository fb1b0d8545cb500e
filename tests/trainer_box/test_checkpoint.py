"""Which checkpoint a run goes on from, and what is told of one that it cannot go on from."""

import json
import math
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from shared.errors import SyncError
from trainer_box import checkpoint

STATE = {"run_id": "r", "version": 4, "fingerprint": "0123456789abcdef"}
FILES: dict[str, Any] = {
    "trainer_state.json": {"global_step": 4},
    "rollout_state.json": {"prompt_index": 32, "model_version": 4},
    "optimizer.pt": "",
    "scheduler.pt": "",
    "model.safetensors": "",
}


def save(folder: Path, step: int, **changes: Any) -> Path:
    place = folder / f"checkpoint-{step}"
    checkpoint.begin(place)
    for name, content in FILES.items():
        (place / name).write_text(json.dumps(content))
    checkpoint.complete(place, {**STATE, **changes})
    return place


def newest(folder: Path) -> tuple[checkpoint.Checkpoint, list[str]]:
    lines: list[str] = []
    return checkpoint.newest(folder, "r", lines.append), lines


def refusal(folder: Path) -> str:
    with pytest.raises(SyncError) as caught:
        newest(folder)
    return str(caught.value)


def test_the_newest_one_of_the_run_is_gone_on_from(tmp_path: Path) -> None:
    for step, run_id in ((2, "r"), (10, "r"), (9, "r"), (30, "older")):
        save(tmp_path, step, run_id=run_id)
    (tmp_path / "checkpoint-final").mkdir()
    (tmp_path / "checkpoint-99").touch()
    found, lines = newest(tmp_path)
    assert found == checkpoint.Checkpoint(tmp_path / "checkpoint-10", "r", 4, "0123456789abcdef")
    assert lines == []


def test_one_that_was_broken_off_is_passed_over_in_a_sentence(tmp_path: Path) -> None:
    save(tmp_path, 2)
    checkpoint.begin(tmp_path / "checkpoint-4")
    (tmp_path / "checkpoint-4" / "model.safetensors").touch()
    found, (line,) = newest(tmp_path)
    assert found.folder.name == "checkpoint-2"
    assert line == f"{tmp_path}/checkpoint-4 is passed over: it has no sync.json, so saving it was broken off"


def test_one_that_is_saved_again_is_not_whole_meanwhile(tmp_path: Path) -> None:
    save(tmp_path, 2)
    place = save(tmp_path, 4)
    checkpoint.begin(place)
    assert newest(tmp_path)[0].folder.name == "checkpoint-2"
    checkpoint.complete(place, {**STATE, "version": 9})
    assert newest(tmp_path)[0].version == 9
    assert sorted(path.name for path in place.iterdir()) == sorted([*FILES, "sync.json"])


def test_without_any_the_sentence_says_why(tmp_path: Path) -> None:
    assert f"there is no checkpoint in {tmp_path} to resume from; check --run-id and --output-dir" in refusal(tmp_path)
    checkpoint.begin(tmp_path / "checkpoint-4")
    assert "checkpoint-4 has no sync.json: saving it was broken off, or another trainer did" in refusal(tmp_path)
    save(tmp_path, 2, run_id="older")
    assert "checkpoint-2 belongs to run 'older', not to 'r'; resume with --run-id older" in refusal(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        '{"run_id": "r"',
        "[]",
        "[" * 100_000,
        '{"run_id": "r"}',
        "\xff\xfe",
        *(json.dumps({**STATE, "fingerprint": odd}) for odd in ("x", "0123456789ABCDEF", None)),
        *(json.dumps({**STATE, "version": odd}) for odd in (True, 3.7, -5, "7", None, 10**12, math.inf, math.nan)),
        *(json.dumps({**STATE, "run_id": odd}) for odd in (None, 5, "", "../r")),
    ],
)
def test_a_damaged_or_foreign_sync_file_is_told(tmp_path: Path, content: str) -> None:
    (save(tmp_path, 4) / "sync.json").write_bytes(content.encode("latin-1"))
    sentence = refusal(tmp_path)
    assert "checkpoint-4 has no readable sync.json, was it saved by this trainer? sync.json" in sentence
    assert sentence.endswith("; delete it to go on from an older checkpoint")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_told_not_done_without(tmp_path: Path, name: str) -> None:
    (save(tmp_path, 4) / name).unlink()
    assert f"checkpoint-4 lacks {name}; put it back, or delete" in refusal(tmp_path)


def test_a_reward_that_is_unknown_in_the_trainer_s_own_log_is_no_damage(tmp_path: Path) -> None:
    place = save(tmp_path, 4)
    state = {"global_step": 4, "log_history": [{"reward": math.nan}]}
    (place / "trainer_state.json").write_text(json.dumps(state))
    assert newest(tmp_path)[0].folder == place


def test_a_model_in_several_files_is_as_good(tmp_path: Path) -> None:
    place = save(tmp_path, 4)
    (place / "model.safetensors").rename(place / "model.safetensors.index.json")
    assert newest(tmp_path)[0].folder == place


@pytest.mark.parametrize("name", ["trainer_state.json", "rollout_state.json"])
@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "[" * 100_000, '{"foreign": 1}'),
        *(f'{{"COUNT": {odd}}}' for odd in ("null", "true", "3.7", "-5", '"7"', "Infinity")),
    ],
)
def test_a_damaged_state_is_told(tmp_path: Path, name: str, content: str) -> None:
    count = next(iter(FILES[name]))
    (save(tmp_path, 4) / name).write_text(content.replace("COUNT", count))
    sentence = refusal(tmp_path)
    assert sentence.startswith(f"{name} of {tmp_path}/checkpoint-4 cannot be loaded: ")
    assert sentence.count("\n") == 0


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("PytorchStreamReader failed\nat length"),
        pickle.UnpicklingError("invalid load key"),
        EOFError(),
        KeyError("state"),
        ValueError("another parameter group"),
        SafetensorError("incomplete metadata"),
        FileNotFoundError("gone"),
    ],
)
def test_whatever_a_reader_raises_is_one_sentence(error: Exception) -> None:
    with pytest.raises(SyncError) as caught, checkpoint.loading("out/checkpoint-4", "the optimizer's state"):
        raise error
    sentence = str(caught.value)
    assert sentence.startswith(f"the optimizer's state of out/checkpoint-4 cannot be loaded: {type(error).__name__}")
    assert sentence.endswith("; delete that folder to go on from an older checkpoint")
    assert "\n" not in sentence


def test_a_folder_that_is_gone_again_is_no_checkpoint(tmp_path: Path) -> None:
    shutil.rmtree(save(tmp_path, 4))
    assert "there is no checkpoint" in refusal(tmp_path)
