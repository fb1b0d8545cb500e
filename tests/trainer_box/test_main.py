"""`python -m trainer_box`: what it refuses, each in a sentence, and real runs of a task that is not in the project."""

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoTokenizer

from shared.bucket import open_bucket
from shared.follower import Follower
from shared.reader import RunReader
from shared.types import Base, Json, Manifest
from tests.conftest import RunningProcess, StartProcess
from tests.trainer_box import number_task
from tests.trainer_box.fake_space import KEY, Answer, FakeSpace, fake_space
from trainer_box import checkpoint
from trainer_box import script as trainer
from trainer_box.arguments import ScriptArguments
from trainer_box.publisher import Publisher
from trainer_box.tiny_policy import tiny_policy_path
from trainer_box.trl_adapter import TrainingConfig

MODEL = str(tiny_policy_path())
DEADLINE_S = 400
TASK = ("--environment", "mytask:Guess", "--dataset", "mytask:rows", "--reward", "mytask:bonus")


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
    monkeypatch.setattr("trainer_box.replica._POLL_S", 0.05)
    Path(f"{number_task.MODULE}.py").write_text(number_task.SOURCE)
    return tmp_path


@pytest.fixture
def space(folder: Path) -> Iterator[FakeSpace]:
    with fake_space(MODEL, key=KEY) as server:
        server.follow(open_bucket("local:bucket"))
        server.complete = number_task.policy(AutoTokenizer.from_pretrained(MODEL))
        yield server


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


def options(url: str, **changes: str) -> list[str]:
    given = {"model": MODEL, "bucket": "local:bucket", "run-id": "r", "vllm-url": url, "vllm-server-timeout": "0.1"}
    return [*TASK, *(f"--{name}={value}" for name, value in {**given, **changes}.items())]


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


def test_a_served_name_that_does_not_match_is_refused(refusal: Refusal, space: FakeSpace) -> None:
    space.models = ["another"]
    assert f"serves another, not '{MODEL}'" in refusal(*options(space.url))


def test_a_run_that_exists_is_refused_without_resume(refusal: Refusal, space: FakeSpace) -> None:
    Publisher(open_bucket("local:other"), "r").close()
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
    assert f"environment at {url} cannot be reached" in refusal(*options(space.url, **wordle))


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


TRAINING = (
    "--output-dir=out",
    "--per-device-train-batch-size=8",
    "--num-generations=4",
    "--max-inflight-tasks=8",
    "--max-completion-length=16",
    "--learning-rate=1e-3",
    "--token-budget=0",
    "--weight-sync-timeout=30",
    '--chat-template-kwargs={"enable_thinking": false}',
)


class Script:
    """Starts the script as a process in the task's folder."""

    def __init__(self, process: StartProcess, folder: Path, space: FakeSpace) -> None:
        self._process = process
        self._folder = folder
        self._url = space.url

    def __call__(self, *arguments: str) -> RunningProcess:
        given = [*options(self._url, **{"vllm-server-timeout": "30"}), *TRAINING, *arguments]
        return self._process(["env", "-C", str(self._folder), sys.executable, "-m", "trainer_box", *given])


@pytest.fixture
def script(process: StartProcess, folder: Path, space: FakeSpace) -> Script:
    return Script(process, folder, space)


@pytest.mark.slow
def test_a_refusal_of_the_real_command_is_one_sentence_and_exit_code_1(script: Script, space: FakeSpace) -> None:
    space.models = ["another"]
    refused = script("--max-steps=1")
    assert refused.wait(DEADLINE_S) == 1
    progress, sentence, rest = refused.output().split("\n")
    assert progress.startswith(f"waiting for vLLM at {space.url}"), refused.output()
    assert sentence.startswith(f"error: vLLM at {space.url} serves another, not"), refused.output()
    assert rest == ""


def wait_for_line(running: RunningProcess, text: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while text not in running.output():
        assert running.process.poll() is None, running.output()
        assert time.monotonic() < end, running.output()
        time.sleep(0.1)


def interrupt(running: RunningProcess) -> list[psutil.Process]:
    """As a terminal does on Ctrl-C: a signal to the trainer and to all that it has started."""
    trainer_process = psutil.Process(running.process.pid)
    all_processes = [*trainer_process.children(recursive=True), trainer_process]
    for member in all_processes:
        member.send_signal(signal.SIGINT)
    return all_processes


def versions() -> dict[int, Manifest]:
    return {manifest.version: manifest for manifest in RunReader(open_bucket("local:bucket"), "r").manifests()}


def records(name: str) -> list[Json]:
    return [json.loads(line) for line in Path("out", name).read_text().splitlines()]


def saved(step: int) -> Json:
    found: Json = json.loads(Path(f"out/checkpoint-{step}/sync.json").read_text())
    return found


def fingerprint_in_bucket() -> str:
    """Of the newest version, rebuilt from the bucket's files."""
    weights: dict[str, torch.Tensor] = {}
    return Follower(open_bucket("local:bucket"), "r").catch_up(weights).fingerprint


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_task_outside_the_project_is_trained_and_its_run_goes_on_after_a_resume(
    script: Script, folder: Path, space: FakeSpace
) -> None:
    first = script("--max-steps=2")
    assert first.wait(DEADLINE_S) == 0, first.output()
    assert KEY not in first.output()
    manifests = versions()
    assert sorted(manifests) == [0, 1, 2]
    assert manifests[0].files == (), "the Space has the untouched model already"
    assert [update["version"] for update in space.updates] == [0, 1, 2]
    for manifest in (manifests[1], manifests[2]):
        assert {"reward", "environment/solved", "rewards/Guess", "rewards/bonus", "ratio"} <= manifest.trainer.keys()
        assert manifest.trainer["reward"] == pytest.approx(manifest.trainer["rewards/Guess"] + 0.5)
        assert 0 <= manifest.trainer["environment/solved"] <= manifest.trainer["rewards/Guess"] <= 1
    assert 0 < manifests[1].changed + manifests[2].changed
    rollouts = [json.loads(line) for line in Path("bucket/r/rollouts/000002.jsonl").read_text().splitlines()]
    assert rollouts[0]["messages"][0]["content"] == "Guess a number. It is at most 3."
    assert rollouts[0]["messages"][1]["tool_calls"][0]["function"]["name"] == "guess"
    assert [(step["step"], step["version"]) for step in records("steps.jsonl")] == [(1, 1), (2, 2)]
    assert all(0 <= step["solve_rate"] <= 1 for step in records("steps.jsonl"))
    assert [(sync["version"], sync["kind"], sync["pause_ms"]) for sync in records("syncs.jsonl")] == [
        (version, manifests[version].kind, 50) for version in (0, 1, 2)
    ]
    assert saved(2) == {"run_id": "r", "version": 2, "fingerprint": manifests[2].fingerprint}

    second = script("--max-steps=3", "--resume")
    assert second.wait(DEADLINE_S) == 0, second.output()
    assert "sync v2 is in the bucket already; training goes on from it" in second.output()
    assert [update["version"] for update in space.updates] == [0, 1, 2, 2, 3], "the same weights are not sent again"
    manifests = versions()
    assert sorted(manifests) == [0, 1, 2, 3]
    assert (manifests[3].kind, manifests[3].writer_epoch) == (manifests[2].kind, manifests[2].writer_epoch + 1)
    assert records("steps.jsonl")[-1]["step"] == 3
    assert saved(3) == {"run_id": "r", "version": 3, "fingerprint": fingerprint_in_bucket()}

    Path("out/checkpoint-3/sync.json").unlink()  # as if the trainer had been killed while saving it
    third = script("--max-steps=3", "--resume")
    assert third.wait(DEADLINE_S) == 0, third.output()
    assert "out/checkpoint-3 is passed over: it has no sync.json" in third.output()
    assert [update["version"] for update in space.updates][5:] == [4, 5], "the Space was ahead, and follows"
    manifests = versions()
    assert manifests[4].kind == "anchor"
    assert manifests[4].fingerprint == manifests[2].fingerprint, "training starts from the weights it stopped at"
    assert saved(3) == {"run_id": "r", "version": 5, "fingerprint": fingerprint_in_bucket()}

    place = Path("out/checkpoint-3/model.safetensors")
    damaged = bytearray(place.read_bytes())
    damaged[-1] ^= 0xFF
    place.write_bytes(damaged)
    fourth = script("--max-steps=4", "--resume")
    assert fourth.wait(DEADLINE_S) == 1, fourth.output()
    last = fourth.output().splitlines()[-1]
    assert last.startswith("error: the weights loaded from out/checkpoint-3 have fingerprint "), last
    assert sorted(versions()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_space_that_is_away_for_some_steps_costs_nothing(script: Script, space: FakeSpace) -> None:
    running = script("--max-steps=8")
    wait_for_line(running, "sync v1 ")
    for path in ("/weights/update", "/v1/completions"):
        space.fixed[path] = Answer(503, "<html>restarting</html>")
    wait_for_line(running, "rollouts wait for")
    wait_for_line(running, "is published, but not served yet: HTTP 503 <html>restarting</html>")
    space.fixed.clear()
    assert running.wait(DEADLINE_S) == 0, running.output()
    assert "rollouts go on with" in running.output()
    assert [step["step"] for step in records("steps.jsonl")] == list(range(1, 9))
    newest = max(versions())
    assert space.status["version"] == newest
    assert fingerprint_in_bucket() == versions()[newest].fingerprint == saved(8)["fingerprint"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_space_that_is_stuck_ends_training_with_a_checkpoint_from_which_it_goes_on(
    script: Script, space: FakeSpace
) -> None:
    running = script("--max-steps=100000", "--max-staleness=1", "--weight-sync-timeout=3")
    wait_for_line(running, "sync v1 ")
    started = psutil.Process(running.process.pid).children(recursive=True)
    space.fixed["/weights/update"] = Answer(202, {"state": "staging"})
    assert running.wait(DEADLINE_S) == 1, running.output()
    *_, how, last = running.output().splitlines()
    sentence = (
        r"error: sync v\d+: vLLM serves version \d+ after 3 s of waiting, and training may be 1 ahead "
        r'\(--max-staleness\); the last problem: HTTP 202 {"state": "staging"}'
    )
    assert re.fullmatch(sentence, last), last
    step = max(int(path.parent.name.split("-")[1]) for path in Path("out").glob("checkpoint-*/sync.json"))
    assert how == f"checkpoint saved in out/checkpoint-{step}; to go on, add: --resume --run-id r"
    assert "Traceback" not in running.output()
    assert not psutil.wait_procs(started, timeout=10)[1]

    space.fixed.clear()
    spent = max(versions())
    again = script(f"--max-steps={step + 1}", "--resume")
    assert again.wait(DEADLINE_S) == 0, again.output()
    assert max(versions()) > max(spent, saved(step)["version"])
    assert space.status["version"] == max(versions())
    assert records("steps.jsonl")[-1]["step"] == step + 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_space_that_stays_away_ends_training_with_a_checkpoint(script: Script, space: FakeSpace) -> None:
    running = script("--max-steps=100000", "--weight-sync-timeout=3")
    wait_for_line(running, "sync v1 ")
    space.fixed["/v1/completions"] = Answer(503, {"error": "dirty"})
    assert running.wait(DEADLINE_S) == 1, running.output()
    *_, how, last = running.output().splitlines()
    assert how.startswith("checkpoint saved in out/checkpoint-"), how
    assert last.startswith(f"error: the rollouts stopped: {space.url} gave no answer for "), last


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_once_saves_a_checkpoint_and_says_how_to_go_on(script: Script, space: FakeSpace) -> None:
    running = script("--max-steps=100000")
    wait_for_line(running, "sync v1 ")
    started = interrupt(running)
    assert running.wait(DEADLINE_S) == 130, running.output()
    assert "stopping after this step with a checkpoint; Ctrl-C again stops at once" in running.output()
    (place,) = Path("out").glob("checkpoint-*")
    assert (place / "sync.json").is_file()
    assert f"checkpoint saved in {place}; to go on, add: --resume --run-id r" in running.output()
    newest = max(versions())
    assert space.status["version"] == newest, "the Space has what the checkpoint has"
    assert versions()[newest].fingerprint == json.loads((place / "sync.json").read_text())["fingerprint"]
    assert "Traceback" not in running.output()
    assert not psutil.wait_procs(started, timeout=10)[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_twice_ends_at_once_and_leaves_nothing_running(script: Script, space: FakeSpace) -> None:
    space.fixed["/v1/completions"] = Answer(503)  # no samples come, so that no step ends
    running = script("--max-steps=100000")
    wait_for_line(running, "sync v0 ")
    interrupt(running)
    wait_for_line(running, "Ctrl-C again")
    started = interrupt(running)
    assert running.wait(DEADLINE_S) == 130, running.output()
    assert "interrupted" in running.output()
    assert not psutil.wait_procs(started, timeout=10)[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_key_that_is_withdrawn_ends_the_training_in_one_sentence(script: Script, space: FakeSpace) -> None:
    running = script("--max-steps=100000")
    wait_for_line(running, "sync v1 ")
    started = psutil.Process(running.process.pid).children(recursive=True)
    space.fixed["/v1/completions"] = Answer(401, {"error": "no or wrong key"})
    assert running.wait(DEADLINE_S) == 1, running.output()
    *_, how, last = running.output().splitlines()
    assert how.startswith("checkpoint saved in out/checkpoint-"), how
    assert last.startswith(f"error: the rollouts stopped: {space.url}/v1/completions answered HTTP 401"), last
    assert "Traceback" not in running.output()
    assert KEY not in running.output()
    assert not psutil.wait_procs(started, timeout=10)[1]
