"""A folder to start `python -m trainer_box` in, with a task that is not in the project, and a fake Space for it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from shared.bucket import open_bucket
from tests.conftest import StartProcess
from tests.trainer_box import number_task
from tests.trainer_box.fake_space import KEY, FakeSpace, fake_space
from tests.trainer_box.script.runs import MODEL, Script


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the run is started, with the task's module in it and nothing of the run in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, number_task.MODULE, raising=False)
    for name in ("MODEL", "BUCKET", "RUN_ID", "WORLD_SIZE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # for processes; it has been read already in this one
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("shared.health.POLL_S", 0.05)
    Path(f"{number_task.MODULE}.py").write_text(number_task.SOURCE)
    return tmp_path


@pytest.fixture
def space(folder: Path) -> Iterator[FakeSpace]:
    with fake_space(MODEL, key=KEY) as server:
        server.follow(open_bucket("local:bucket"))
        server.complete = number_task.policy(AutoTokenizer.from_pretrained(MODEL))
        yield server


@pytest.fixture
def script(process: StartProcess, folder: Path, space: FakeSpace) -> Script:
    return Script(process, folder, space)
