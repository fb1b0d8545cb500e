"""What is written in the place of being pushed, and what is neither written nor pushed."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub import StandIn
from tests.trainer_box.deploy.conftest import BUCKET, ENV, VLLM, space

pytestmark = pytest.mark.usefixtures("checkout")


def test_a_dry_run_writes_what_would_be_pushed_and_asks_nobody(
    hub: StandIn, run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("SPACE_HF_TOKEN")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    folder = tmp_path / "dry"
    for _ in range(2):
        run("--dry-run", str(folder))
    for name in ("space_vllm", "space_env"):
        pushed = space(hub, VLLM if name == "space_vllm" else ENV)["files"]
        written = {str(path.relative_to(folder / name)) for path in (folder / name).rglob("*") if path.is_file()}
        assert written == set(pushed)
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["bucket"] == {"name": BUCKET, "private": True}
    assert [one["repo_id"] for one in plan["spaces"]] == [VLLM, ENV]
    assert [one["secrets"] for one in plan["spaces"]] == [["HF_TOKEN", "VLLM_API_KEY"], ["ENV_API_KEY"]]
    assert [set(one["files"]) for one in plan["spaces"]] == [set(space(hub, name)["files"]) for name in (VLLM, ENV)]


def test_a_dry_run_touches_no_folder_with_other_files(run: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years")
    told = run("--dry-run", str(tmp_path / "full"), code=1)
    assert f"holds other files ({tmp_path}/full/thesis.txt); name a new or empty folder" in told
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("text", ["{}", "[]", "null", "no json", '{"spaces": [{"folder": "space_env"}]}'])
def test_a_plan_of_somebody_else_is_a_file_like_others(run: Callable[..., str], tmp_path: Path, text: str) -> None:
    folder = tmp_path / "full"
    (folder / "space_env").mkdir(parents=True)
    (folder / "plan.json").write_text(text)
    (folder / "space_env" / "thesis.txt").write_text("years")
    assert "holds other files" in run("--dry-run", str(folder), code=1)
    assert (folder / "space_env" / "thesis.txt").read_text() == "years"


def test_what_somebody_put_beside_an_earlier_dry_run_stays(run: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "dry"
    run("--dry-run", str(folder))
    before = (folder / "plan.json").read_text()
    (folder / "space_env" / "notes.txt").write_text("mine")
    told = run("--dry-run", str(folder), "--model", "Qwen/Qwen3-4B", code=1)
    assert f"holds other files ({folder}/space_env/notes.txt)" in told
    assert (folder / "plan.json").read_text() == before


@pytest.mark.parametrize("place", ["space_env/out", "shared", "trainer_box/deploy/out"])
def test_a_dry_run_does_not_write_into_the_code(run: Callable[..., str], checkout: Path, place: str) -> None:
    before = set(checkout.rglob("*"))
    assert "is among the project's own code" in run("--dry-run", str(checkout / place), code=1)
    assert set(checkout.rglob("*")) == before


def test_a_file_that_git_does_not_know_is_pushed_nowhere(
    hub: StandIn, run: Callable[..., str], checkout: Path
) -> None:
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(checkout), *command], check=True, timeout=30)
    run("--dry-run", str(checkout.parent / "dry"))
    (checkout / "space_env/page/forgotten.py").write_text("TOKEN = 'hf_mine'")
    told = run(code=1)
    assert "space_env/page/forgotten.py would be pushed, but git does not know it; git add it, or move it away" in told
    assert hub.described() == {"spaces": {}, "buckets": {}}


def test_outside_of_a_checkout_the_missing_file_is_named(run: Callable[..., str], checkout: Path) -> None:
    (checkout / "Dockerfile.vllm").unlink()
    sentence = run("--dry-run", str(checkout.parent / "dry"), code=1)
    assert f"{checkout}/Dockerfile.vllm is not there; the Spaces are made from a checkout" in sentence
