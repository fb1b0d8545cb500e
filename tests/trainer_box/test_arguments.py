"""The script's own arguments: from the command line first, else from the environment."""

import re

import pytest
from transformers import HfArgumentParser

from trainer_box.arguments import ScriptArguments


def parse(*arguments: str) -> ScriptArguments:
    (parsed,) = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses(list(arguments))
    assert isinstance(parsed, ScriptArguments)
    return parsed


def test_model_bucket_and_run_come_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL", "BUCKET", "RUN_ID"):
        monkeypatch.setenv(name, f"{name} of the environment")
    found = parse("--bucket=user/given")
    assert (found.model, found.bucket) == ("MODEL of the environment", "user/given")
    assert found.run_id == "RUN_ID of the environment"


def test_without_any_the_run_is_named_after_its_start_and_the_rest_is_left_to_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MODEL", "BUCKET", "RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    found = parse()
    assert re.fullmatch(r"run-\d{8}-\d{6}", found.run_id)
    assert (found.model, found.bucket, found.resume) == ("", "", False)


def test_the_task_is_wordle_unless_told() -> None:
    assert parse().environment == "trainer_box.environment:Wordle"
    assert parse().dataset == "trainer_box.environment:dataset"
    assert parse("--environment=a.b:C").environment == "a.b:C"
