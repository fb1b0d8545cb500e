"""Specs of tasks: what is found, and one sentence for each way of not finding it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from datasets import Dataset

from shared.errors import SyncError
from trainer_box import task

SOURCE = """
from datasets import Dataset

answer = 42

class Plain:
    def reset(self, **row): pass

class Remote:
    def __init__(self, url, words="tiny"):
        self.url = url

def reward(completions, **columns):
    return [0.0 for _ in completions]

def rows():
    return Dataset.from_list([{"prompt": "hi"}])

def no_rows():
    return []
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("outside.py").write_text(SOURCE)
    Path("broken.py").write_text("import a_module_that_is_not_there\n")
    Path("careless.py").write_text("{}['lost']\n")
    yield
    for name in ("outside", "broken", "careless"):
        sys.modules.pop(name, None)


def test_a_module_of_the_current_folder_is_found() -> None:
    assert task.load_attribute("outside:answer", "--environment") == 42
    assert str(Path.cwd()) in sys.path, "the rollout process gets this path, and has to find the module too"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("outside", "should look like package.module:name"),
        ("outside:", "should look like package.module:name"),
        (":Plain", "should look like package.module:name"),
        (".outside:Plain", "should look like package.module:name"),
        ("nowhere.near:Plain", "module 'nowhere.near' cannot be imported: No module named 'nowhere'"),
        ("broken:Plain", "module 'broken' cannot be imported: No module named 'a_module_that_is_not_there'"),
        ("outside:Missing", "module 'outside' has no 'Missing'"),
    ],
)
def test_a_spec_that_leads_nowhere_is_one_sentence(spec: str, told: str) -> None:
    with pytest.raises(SyncError) as caught:
        task.load_attribute(spec, "--environment")
    assert str(caught.value).startswith(f"--environment {spec!r}")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_the_task_itself_is_not_taken_for_a_missing_name() -> None:
    with pytest.raises(KeyError, match="lost"):
        task.load_attribute("careless:Plain", "--environment")


def test_an_environment_is_made_with_its_url_or_without() -> None:
    assert type(task.environment_factory("outside:Plain", "")()).__name__ == "Plain"
    assert task.environment_factory("outside:Remote", "http://there")().url == "http://there"


def test_an_environment_that_cannot_be_made_is_told_before_any_process_starts() -> None:
    with pytest.raises(SyncError, match="'outside:Remote' cannot be made without --env-url: missing .*'url'"):
        task.environment_factory("outside:Remote", "")
    with pytest.raises(SyncError, match="'outside:Plain' cannot be made with --env-url http://there: too many"):
        task.environment_factory("outside:Plain", "http://there")
    with pytest.raises(SyncError, match="'outside:answer' is a int, not a class or function"):
        task.environment_factory("outside:answer", "")


def test_a_reward_is_a_function() -> None:
    assert task.reward_function("outside:reward")(["a", "b"]) == [0.0, 0.0]
    with pytest.raises(SyncError, match="--reward 'outside:answer' is a int, not a class or function"):
        task.reward_function("outside:answer")


def test_a_dataset_is_made_by_a_function_or_read_from_a_folder() -> None:
    made = task.dataset("outside:rows")
    assert isinstance(made, Dataset)
    Path("data").mkdir()
    Path("data", "train.jsonl").write_text('{"prompt": "hi"}\n')
    assert task.dataset("data")["prompt"] == made["prompt"] == ["hi"]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("outside:no_rows", "made a list, not a datasets.Dataset"),
        ("outside:answer", "is a int, not a class or function"),
        ("nothing/here", "cannot be loaded: "),
    ],
)
def test_a_dataset_that_is_none_is_one_sentence(spec: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(SyncError, match=f"^--dataset {spec!r} {told}"):
        task.dataset(spec)
