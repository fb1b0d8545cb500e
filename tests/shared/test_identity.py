import tomllib
from pathlib import Path

from shared.identity import VERSION, default_bucket, identity

ROOT = Path(__file__).resolve().parents[2]


def test_the_release_is_that_of_the_project() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_a_unit_on_a_space_tells_which_and_elsewhere_none() -> None:
    assert identity({"SPACE_ID": "user/name"}) == {"project": VERSION, "space": "user/name"}
    assert identity({"SPACE_ID": ""})["space"] is None
    assert identity({})["space"] is None


def test_everybody_has_a_bucket_of_their_own_by_default() -> None:
    assert default_bucket("somebody") == "somebody/async-rl-weights"
