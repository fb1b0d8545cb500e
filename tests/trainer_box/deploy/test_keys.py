"""The Spaces' keys stay the same from run to run, and only their owner can read them."""

import os
import shlex
from pathlib import Path

import pytest

from shared.errors import SyncError
from trainer_box.deploy.keys import NAMES, load_or_make, place_of


def test_keys_are_made_once_and_differ(tmp_path: Path) -> None:
    place = tmp_path / "new" / "user.env"
    made = load_or_make(place, {}, print)
    assert set(made) == set(NAMES)
    assert len(set(made.values())) == 2 and min(map(len, made.values())) >= 43
    assert load_or_make(place, {}, print) == made


def test_a_file_that_lacks_a_key_keeps_the_other(tmp_path: Path) -> None:
    place = tmp_path / "user.env"
    place.write_text("VLLM_API_KEY=kept\n")
    made = load_or_make(place, {}, print)
    assert made["VLLM_API_KEY"] == "kept"
    assert place.read_text() == f"VLLM_API_KEY=kept\nENV_API_KEY={made['ENV_API_KEY']}\n"
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_key_of_the_environment_comes_first_and_is_kept_beside_the_other(tmp_path: Path) -> None:
    place, told = tmp_path / "user.env", list[str]()
    made = load_or_make(place, {"ENV_API_KEY": "mine"}, told.append)
    assert made["ENV_API_KEY"] == "mine"
    assert (load_or_make(place, {}, told.append), told) == (made, [])
    assert load_or_make(place, {"ENV_API_KEY": "another"}, told.append) == {**made, "ENV_API_KEY": "another"}
    assert told == [f"ENV_API_KEY of the environment replaces the one in {place}"]
    assert load_or_make(place, {}, told.append)["ENV_API_KEY"] == "another"


def test_keys_that_are_all_in_the_environment_make_no_file(tmp_path: Path) -> None:
    given = {name: f"my-{name}" for name in NAMES}
    assert load_or_make(tmp_path / "user.env", given, print) == given
    assert not list(tmp_path.iterdir())


def test_what_somebody_wrote_into_the_file_by_hand_is_read_as_a_shell_reads_it_and_left_there(tmp_path: Path) -> None:
    place = tmp_path / "user.env"
    place.write_text("# of the fleet\n\nexport VLLM_API_KEY='abc' # old\nOTHER=$(date)\n")
    made = load_or_make(place, {}, print)
    assert made["VLLM_API_KEY"] == "abc"
    wanted = f"# of the fleet\n\nexport VLLM_API_KEY='abc' # old\nOTHER=$(date)\nENV_API_KEY={made['ENV_API_KEY']}\n"
    assert place.read_text() == wanted
    load_or_make(place, {"VLLM_API_KEY": "it's"}, print)
    assert place.read_text() == wanted.replace("'abc' # old", shlex.quote("it's"))
    assert load_or_make(place, {}, print)["VLLM_API_KEY"] == "it's"


@pytest.mark.parametrize(
    "line",
    ["VLLM_API_KEY = abc", 'VLLM_API_KEY="a$b"', "VLLM_API_KEY=$(pass vllm)", "VLLM_API_KEY='a", "VLLM_API_KEY=a b"],
)
def test_a_line_that_a_shell_reads_otherwise_is_refused_and_left_as_it_is(tmp_path: Path, line: str) -> None:
    place = tmp_path / "user.env"
    place.write_text(f"# mine\n{line}\n")
    with pytest.raises(SyncError, match=r"line 2 of .*user\.env is not VLLM_API_KEY=KEY; mend it"):
        load_or_make(place, {}, print)
    assert place.read_text() == f"# mine\n{line}\n"


def test_a_file_that_is_no_text_is_a_sentence(tmp_path: Path) -> None:
    place = tmp_path / "user.env"
    place.write_bytes(b"# caf\xe9\nVLLM_API_KEY=a\n")
    with pytest.raises(SyncError, match="is not a text in UTF-8"):
        load_or_make(place, {}, print)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "user.env").symlink_to(tmp_path / "elsewhere.env")
    made = load_or_make(tmp_path / "user.env", {}, print)
    assert (tmp_path / "user.env").is_symlink()
    assert load_or_make(tmp_path / "elsewhere.env", {}, print) == made


def test_without_a_home_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    with pytest.raises(SyncError, match="HOME is not set"):
        place_of("user")


def test_a_file_that_others_may_read_is_shut(tmp_path: Path) -> None:
    place = tmp_path / "user.env"
    load_or_make(place, {}, print)
    os.chmod(place, 0o644)
    load_or_make(place, {}, print)
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SyncError, match="cannot be kept in .*user.env: File exists; .*VLLM_API_KEY and ENV_API"):
        load_or_make(tmp_path / "file" / "user.env", {}, print)
