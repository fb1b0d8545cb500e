"""What `python -m trainer_box` refuses, each in a sentence, with nothing left in the bucket."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.bucket import open_bucket
from shared.types import Base
from tests.trainer_box.fake_space import KEY, FakeSpace
from tests.trainer_box.script.runs import DEADLINE_S, MODEL, Script, options
from trainer_box import checkpoint
from trainer_box import script as trainer
from trainer_box.arguments import ScriptArguments
from trainer_box.publisher import Publisher
from trainer_box.trl_adapter import TrainingConfig


class Refusal:
    """Calls the script in this process; what it refuses is a sentence, and nothing is left in the bucket."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *arguments: str) -> str:
        self._monkeypatch.setattr(sys, "argv", ["trainer_box", *arguments])
        self._capfd.readouterr()
        assert trainer.main() == 1
        sentence = self._capfd.readouterr().err
        assert sentence.startswith("error: ")
        assert sentence.count("\n") == 1, sentence
        assert KEY not in sentence
        assert not list(Path("bucket").glob("*")), "a refused run must leave nothing in the bucket"
        return sentence


@pytest.fixture
def refusal(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Refusal:
    return Refusal(monkeypatch, capfd)


def test_no_model_and_no_bucket_say_what_to_set(refusal: Refusal) -> None:
    assert "no model is given; set --model or MODEL in the environment" in refusal("--bucket=local:bucket")
    assert "no bucket is given; set --bucket or BUCKET in the environment" in refusal("--model=tiny")


def test_a_launcher_of_several_processes_is_refused(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE is 2" in refusal(*options("http://127.0.0.1:1"))


def test_an_argument_that_does_not_exist_is_refused(refusal: Refusal) -> None:
    sentence = refusal(*options("http://127.0.0.1:1"), "--modle=tiny")
    assert "the arguments cannot be used: " in sentence
    assert "--modle=tiny" in sentence


def test_a_bucket_that_cannot_be_written_is_refused(refusal: Refusal, space: FakeSpace) -> None:
    Path("file").touch()
    assert "local:file" in refusal(*options(space.url, bucket="local:file"))
    assert "local:file/bucket: Not a directory" in refusal(*options(space.url, bucket="local:file/bucket"))
    assert "neither 'local:/path' nor 'user/name'" in refusal(*options(space.url, bucket="bucket"))


def test_a_model_that_does_not_exist_is_refused_though_it_is_served(refusal: Refusal, space: FakeSpace) -> None:
    space.models = ["nobody/nothing"]
    assert "model 'nobody/nothing' cannot be trained: " in refusal(*options(space.url, model="nobody/nothing"))


def test_spaces_are_paused_when_that_was_asked_for_though_training_failed(
    refusal: Refusal, space: FakeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[tuple[tuple[str, ...], str | None]] = []
    monkeypatch.setattr(trainer, "pause", lambda spaces, token, report: paused.append((spaces, token)))
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    space.models, space.status["space"] = ["nobody/nothing"], "user/vllm"
    refusal(*options(space.url, model="nobody/nothing"))
    assert paused == []
    refusal(*options(space.url, model="nobody/nothing"), "--pause-spaces-at-end")
    assert paused == [(("user/vllm",), "hf_mine")]


def test_a_served_name_that_does_not_match_is_refused(refusal: Refusal, space: FakeSpace) -> None:
    space.models = ["another"]
    assert f"serves another, not '{MODEL}'" in refusal(*options(space.url))


def test_a_run_that_exists_is_refused_without_resume(refusal: Refusal, space: FakeSpace) -> None:
    Publisher(open_bucket("local:other"), "r").close()
    space.status["bucket"] = "local:other"
    sentence = refusal(*options(space.url, bucket="local:other"))
    assert "run 'r' is in bucket local:other already; go on with it by --resume" in sentence


def test_checkpoints_go_to_the_folder_of_the_run_by_default(folder: Path) -> None:
    script = ScriptArguments(run_id="r")
    assert trainer._prepare_folder(script, TrainingConfig()) == Path("runs", "r")
    assert Path("runs", "r").is_dir()


def test_raw_log_probabilities_are_refused(refusal: Refusal, space: FakeSpace) -> None:
    space.status["logprobs_mode"] = "raw_logprobs"
    assert "--logprobs-mode processed_logprobs" in refusal(*options(space.url))


def test_a_wrong_key_is_refused(refusal: Refusal, space: FakeSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "another")
    assert "refused the key (HTTP 401)" in refusal(*options(space.url))


def test_units_out_of_reach_are_refused(refusal: Refusal, free_port: Callable[[], int], space: FakeSpace) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert f"vLLM at {url} is not ready after 0 s" in refusal(*options(url))
    wordle = {"environment": "trainer_box.environment:Wordle", "env-url": url}
    assert f"the environment at {url} is not ready after 0 s" in refusal(*options(space.url, **wordle))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"environment": "mytask"}, "--environment 'mytask' should look like package.module:name"),
        ({"environment": "notask:Guess"}, "module 'notask' cannot be imported"),
        ({"environment": "mytask:Nothing"}, "module 'mytask' has no 'Nothing'"),
        ({"environment": "trainer_box.environment:Wordle"}, "cannot be made without --env-url: missing"),
        ({"reward": "mytask:MODULE"}, "module 'mytask' has no 'MODULE'"),
        ({"dataset": "mytask:lines"}, "--dataset 'mytask:lines': module 'mytask' has no 'lines'"),
        ({"run-id": "../elsewhere"}, "run id '../elsewhere' is not usable"),
    ],
)
def test_a_task_that_is_not_there_is_refused_before_anything_is_asked(
    refusal: Refusal, space: FakeSpace, changes: dict[str, str], told: str
) -> None:
    assert told in refusal(*options(space.url, **changes))
    assert not space.headers


def test_an_output_folder_that_cannot_be_made_is_refused(refusal: Refusal, space: FakeSpace) -> None:
    Path("file").touch()
    sentence = refusal(*options(space.url), "--output-dir=file/runs")
    assert "output folder file/runs cannot be made: Not a directory; choose another --output-dir" in sentence


def test_a_resume_without_a_checkpoint_of_that_run_is_refused(refusal: Refusal, space: FakeSpace) -> None:
    resume = [*options(space.url), "--resume", "--output-dir=out"]
    assert "there is no checkpoint in out to resume from" in refusal(*resume)
    place = Path("out", "checkpoint-3")
    checkpoint.begin(place)
    assert "out/checkpoint-3 has no sync.json: saving it was broken off" in refusal(*resume)
    checkpoint.complete(place, {"run_id": "older", "version": 3, "fingerprint": "0" * 16})
    assert "belongs to run 'older', not to 'r'; resume with --run-id older" in refusal(*resume)
    checkpoint.complete(place, {"run_id": "r", "version": 3, "fingerprint": "0" * 16})
    assert "out/checkpoint-3 lacks trainer_state.json, rollout_state.json, optimizer.pt" in refusal(*resume)


def test_the_base_of_a_run_is_a_folder_or_a_commit_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("model").mkdir()
    assert trainer._origin("model", {}) == Base(str(folder / "model"))
    commit, asked = "c0ffee" * 6 + "1234", list[Any]()

    def cached_file(model: str, name: str, **options: Any) -> str:
        asked.append((model, name, options))
        return f"/cache/models--user--model/snapshots/{commit}/{name}"

    monkeypatch.setattr(trainer, "cached_file", cached_file)
    assert trainer._origin("user/model", {"revision": "v1"}) == Base("user/model", commit)
    assert asked == [("user/model", "config.json", {"revision": "v1", "local_files_only": True})]


@pytest.mark.slow
def test_a_refusal_of_the_real_command_is_one_sentence_and_exit_code_1(script: Script, space: FakeSpace) -> None:
    space.models = ["another"]
    refused = script("--max-steps=1")
    assert refused.wait(DEADLINE_S) == 1
    progress, sentence, rest = refused.output().split("\n")
    assert progress.startswith(f"waiting for vLLM at {space.url}"), refused.output()
    assert sentence.startswith(f"error: vLLM at {space.url} serves another, not"), refused.output()
    assert rest == ""
