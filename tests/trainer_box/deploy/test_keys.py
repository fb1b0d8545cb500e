"""The Spaces' keys stay the same from run to run, and only their owner can read them."""

import os
from pathlib import Path

import pytest

from shared.errors import SyncError
from trainer_box.deploy.keys import NAMES, load_or_make


def test_keys_are_made_once_and_differ(tmp_path: Path) -> None:
    place = tmp_path / "new" / "user.env"
    made = load_or_make(place, {})
    assert set(made) == set(NAMES)
    assert len(set(made.values())) == 2 and min(map(len, made.values())) >= 43
    assert load_or_make(place, {}) == made


def test_a_file_that_lacks_a_key_keeps_the_other(tmp_path: Path) -> None:
    place = tmp_path / "user.env"
    place.write_text("VLLM_API_KEY=kept\n")
    made = load_or_make(place, {})
    assert made["VLLM_API_KEY"] == "kept"
    assert place.read_text() == f"VLLM_API_KEY=kept\nENV_API_KEY={made['ENV_API_KEY']}\n"
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_key_of_the_environment_comes_first_and_is_not_written(tmp_path: Path) -> None:
    place = tmp_path / "user.env"
    assert load_or_make(place, {"ENV_API_KEY": "mine"})["ENV_API_KEY"] == "mine"
    assert "mine" not in place.read_text()


def test_a_file_that_others_may_read_is_shut(tmp_path: Path) -> None:
    place = tmp_path / "user.env"
    load_or_make(place, {})
    os.chmod(place, 0o644)
    load_or_make(place, {})
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SyncError, match="cannot be kept in .*user.env: File exists; .*VLLM_API_KEY and ENV_API"):
        load_or_make(tmp_path / "file" / "user.env", {})
