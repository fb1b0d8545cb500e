"""A real vLLM server per dtype and session, serving a tiny model of random weights from a bucket folder."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from shared.types import Manifest
from tests.conftest import ROOT, RunningProcess
from tests.space_vllm.fakes import KEY

VOCABULARY = 320
START_DEADLINE_S = 240.0
ANSWER_DEADLINE_S = 120.0


def make_model() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).to(torch.bfloat16).eval()


@dataclass(frozen=True)
class Server:
    """Reached as a trainer reaches it. `dtype` is what the live model has; the wire is bfloat16."""

    dtype: str
    url: str
    bucket: Path
    running: RunningProcess

    def call(self, path: str, body: Any = None, key: str = KEY) -> tuple[int, Any]:
        """Status and JSON body; None for an empty one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, data, headers), timeout=ANSWER_DEADLINE_S
            ) as answer:
                content = answer.read()
                return answer.status, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def stream(self, prompt: list[int], tokens: int) -> Iterator[list[int]]:
        """Token ids as they are generated."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "seed": 1, "ignore_eos": True}
        data = json.dumps({**body, "stream": True, "return_token_ids": True}).encode()
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", data, headers)
        with urllib.request.urlopen(request, timeout=ANSWER_DEADLINE_S) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))["choices"][0]["token_ids"]

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
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "seed": 1, "logprobs": 0}
        status, answer = self.call("/v1/completions", {**body, "ignore_eos": True, "return_token_ids": True})
        assert status == 200, answer
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "length"
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    words = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t2"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="t0", eos_token="t1").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """`request.param` is the dtype that vLLM serves in. Fails when the server leaves a process behind."""
    folder = tmp_path_factory.mktemp(f"server-{request.param}")
    port = _free_port()
    settings = {
        "BUCKET": f"local:{folder / 'bucket'}",
        "MODEL": str(model_folder),
        "SERVED_MODEL_NAME": "tiny",
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "VLLM_API_KEY": KEY,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "space_vllm.serve", "--dtype", request.param, "--max-model-len", "1024"]
    log = folder / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    running = RunningProcess(child, log)
    try:
        running.wait_for_200(f"http://127.0.0.1:{port}/health", START_DEADLINE_S)
        yield Server(request.param, f"http://127.0.0.1:{port}", folder / "bucket", running)
        running.stop()
        assert _ends_by_itself(child.pid), f"processes of the server outlive it:\n{running.tail()}"
    finally:
        running.stop()
        if _exists(child.pid):
            os.killpg(child.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ends_by_itself(group: int) -> bool:
    deadline = time.monotonic() + 20
    while _exists(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not _exists(group)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
