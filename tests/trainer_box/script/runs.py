"""Runs of `python -m trainer_box` as a process in the present folder, and what they leave there."""

import json
import signal
import sys
import time
from pathlib import Path

import psutil
import torch

from shared import layout
from shared.bucket import open_bucket
from shared.follower import Follower
from shared.reader import RunReader
from shared.types import End, Json, Manifest
from tests.conftest import RunningProcess, StartProcess
from tests.trainer_box.fake_space import FakeSpace
from trainer_box.tiny_policy import tiny_policy_path

MODEL = str(tiny_policy_path())
DEADLINE_S = 400
TASK = ("--environment", "mytask:Guess", "--dataset", "mytask:rows", "--reward", "mytask:bonus")
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


def options(url: str, **changes: str) -> list[str]:
    given = {"model": MODEL, "bucket": "local:bucket", "run-id": "r", "vllm-url": url, "vllm-server-timeout": "0.1"}
    return [*TASK, *(f"--{name}={value}" for name, value in {**given, **changes}.items())]


class Script:
    """Starts the script as a process in the task's folder."""

    def __init__(self, process: StartProcess, folder: Path, space: FakeSpace) -> None:
        self._process = process
        self._folder = folder
        self._url = space.url

    def __call__(self, *arguments: str) -> RunningProcess:
        given = [*options(self._url, **{"vllm-server-timeout": "30"}), *TRAINING, *arguments]
        return self._process(["env", "-C", str(self._folder), sys.executable, "-m", "trainer_box", *given])


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


def ends() -> dict[int, str]:
    """Why training ended, by the newest version then."""
    bucket = open_bucket("local:bucket")
    found = [End.from_json(bucket.read(path), path) for path in bucket.files(layout.ends("r"))]
    return {end.version: end.reason for end in found}


def records(name: str) -> list[Json]:
    return [json.loads(line) for line in Path("out", name).read_text().splitlines()]


def saved(step: int) -> Json:
    found: Json = json.loads(Path(f"out/checkpoint-{step}/sync.json").read_text())
    return found


def fingerprint_in_bucket() -> str:
    """Of the newest version, rebuilt from the bucket's files."""
    weights: dict[str, torch.Tensor] = {}
    return Follower(open_bucket("local:bucket"), "r").catch_up(weights).fingerprint
