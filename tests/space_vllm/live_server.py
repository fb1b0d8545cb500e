"""A real vLLM server, started as the Space starts it and reached over HTTP as a trainer reaches it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.types import Manifest
from tests.conftest import ROOT, RunningProcess
from tests.space_vllm.fakes import KEY
from tests.space_vllm.processes import descendants, has_ended
from tests.space_vllm.tiny import POSITIONS

API_SERVER, ENGINE_CORE, WORKER = "vllm.entrypoints.openai.api_server", "VLLM::EngineCore", "VLLM::Worker"
START_DEADLINE_S = 240.0
AUDIT_S = 10  # vLLM's processes wait busily for a second after each call: recounts all the time would take a core
ANSWER_DEADLINE_S = 120.0
_HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


@dataclass(frozen=True)
class Server:
    """`dtype` is what the live model has; the wire is bfloat16. `tied` tells whether head and embedding are one."""

    dtype: str
    tied: bool
    url: str
    bucket: Path
    running: RunningProcess

    def call(self, path: str, body: Any = None, key: str = KEY) -> tuple[int, Any]:
        """Status and JSON body; None for an empty one."""
        try:
            with self._open(path, body, key) as answer:
                content = answer.read()
                return answer.status, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def stream(self, prompt: list[int], tokens: int) -> Iterator[list[int]]:
        """Token ids as they are generated. Raises ConnectionAbortedError when the stream is cut before its end."""
        body = {**_completion(prompt, tokens), "stream": True}
        with self._open("/v1/completions", body) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))["choices"][0]["token_ids"]
                elif line.startswith(b"data: [DONE]"):
                    return
        raise ConnectionAbortedError(f"{self.url} did not end its stream")

    def update(self, manifest: Manifest, key: str = KEY, **changed: Any) -> tuple[int, Any]:
        message = {
            "repo_id": f"local:{self.bucket}",
            "filename": manifest.path,
            "version": manifest.version,
            "run_id": manifest.run_id,
            **changed,
        }
        return self.call("/weights/update?wait=50", message, key)

    def complete(self, prompt: list[int], tokens: int) -> tuple[list[int], list[float]]:
        """Token ids and their log-probabilities."""
        status, answer = self.call("/v1/completions", _completion(prompt, tokens))
        assert status == 200, answer
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "length"
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def greedy(self, prompt: list[int], tokens: int) -> tuple[int, list[int]]:
        """Status and token ids, none of them unless the status is 200."""
        status, answer = self.call("/v1/completions", {**_completion(prompt, tokens), "temperature": 0})
        return status, answer["choices"][0]["token_ids"] if status == 200 else []

    def status(self) -> dict[str, Any]:
        status, answer = self.call("/weights/status")
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    def checksums(self) -> dict[str, str]:
        """By the names of live parameters, without vLLM's name of the worker before them."""
        status, answer = self.call("/weights/checksums")
        assert status == 200, answer
        return {name.rpartition(":")[2]: digest for name, digest in answer.items()}

    def metric(self, name: str, label: str = "") -> float:
        """The sum of all series of that name which have this label."""
        with self._open("/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.partition("{")[0] == name and label in line)

    def processes(self, name: str) -> list[int]:
        """Those of vLLM that are called so, one at most; none while it starts."""
        return [child for child in descendants(self.running.process.pid) if name in command_of(child)]

    def is_healthy(self) -> bool:
        return self.call("/health")[0] == 200

    def wait_until(self, met: Callable[[dict[str, Any]], bool], what: str, deadline_s: float = 60.0) -> dict[str, Any]:
        """The first status that meets the condition; fails after the deadline."""
        deadline = time.monotonic() + deadline_s
        while not met(status := self.status()):
            assert time.monotonic() < deadline, f"not in time: {what}: {status}\n{self.running.tail()}"
            time.sleep(0.05)
        return status

    def _open(self, path: str, body: Any = None, key: str = KEY) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {**_HEADERS, "Authorization": f"Bearer {key}"}
        return urllib.request.urlopen(
            urllib.request.Request(self.url + path, data, headers), timeout=ANSWER_DEADLINE_S
        )


def _completion(prompt: list[int], tokens: int) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "seed": 1, "logprobs": 0}
    return {**body, "ignore_eos": True, "return_token_ids": True}


@contextmanager
def serving(
    folder: Path,
    model: Path,
    dtype: str,
    tied: bool,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A healthy server of `model`, whose bucket and log are in `folder`. Fails when it leaves a process behind."""
    port = _free_port()
    settings = {
        "BUCKET": f"local:{folder / 'bucket'}",
        "MODEL": str(model),
        "SERVED_MODEL_NAME": "tiny",
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "VLLM_API_KEY": KEY,
        "AUDIT_SECONDS": str(AUDIT_S),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        **(environment or {}),
    }
    command = [
        sys.executable,
        "-m",
        "space_vllm.serve",
        "--dtype",
        dtype,
        "--max-model-len",
        str(POSITIONS),
        *arguments,
    ]
    log = folder / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    running = RunningProcess(child, log)
    try:
        running.wait_for_200(f"http://127.0.0.1:{port}/health", START_DEADLINE_S)
        yield Server(dtype, tied, f"http://127.0.0.1:{port}", folder / "bucket", running)
        started = descendants(child.pid)
        assert running.stop() == 0, running.tail()
        assert all(map(has_ended, started)), f"processes of the server outlive it:\n{running.tail()}"
    finally:
        running.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command_of(process: int) -> str:
    """Empty for one that has ended."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(psutil.Process(process).cmdline())
    return ""


both_dtypes = pytest.mark.parametrize("server", ["float32", "bfloat16"], indirect=True)
in_float32 = pytest.mark.parametrize("server", ["float32"], indirect=True)
