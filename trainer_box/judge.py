"""The outcome of a local run, judged from outside the trainer: how well the served policy plays, and whether it is the
one in the bucket.
"""

import asyncio
import functools
import json
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared import layout
from shared.bucket import open_bucket
from shared.errors import ChainError, IntegrityError
from shared.follower import Follower
from shared.reader import RunReader
from shared.types import Json, Manifest
from trainer_box.agreement import Agreement, compare, sample
from trainer_box.conversation import render
from trainer_box.environment import TinyWordle
from trainer_box.evaluate import Score, evaluate, served_policy
from trainer_box.replica import Replica

_PROMPTS = 48
_TOKENS = 16


class Judge:
    def __init__(self, vllm_url: str, env_url: str, model: str, bucket: str, run_id: str) -> None:
        self._vllm_url = vllm_url
        self._env_url = env_url
        self._model = model
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._bucket = open_bucket(bucket)
        self._run_id = run_id

    def play(self, seeds: Sequence[int]) -> Score:
        """One greedy game for each seed."""
        return asyncio.run(self._play(seeds))

    async def _play(self, seeds: Sequence[int]) -> Score:
        async with served_policy(self._vllm_url, self._model, max_tokens=_TOKENS) as generate:
            factory = functools.partial(TinyWordle, self._env_url)
            return await evaluate(generate, self._tokenizer, factory, seeds)

    def compare(self, temperature: float) -> Json:
        """Rebuild the newest version from the bucket alone, and compare what is served with it.

        `verified` is False, with the reason as `problem`, when the bucket does not lead to what the Space serves.
        """
        weights: dict[str, torch.Tensor] = {}
        try:
            newest = Follower(self._bucket, self._run_id).catch_up(weights)
            self._check_served(newest)
        except (IntegrityError, ChainError) as error:
            return {"verified": False, "problem": str(error)}
        return {
            "verified": True,
            "versions": sum(1 for _ in RunReader(self._bucket, self._run_id).manifests()),
            "model_bytes": sum(tensor.numel() * tensor.element_size() for tensor in weights.values()),
            "agreement": vars(self._agreement(weights, newest, temperature)),
        }

    def _check_served(self, newest: Manifest) -> None:
        status = Replica(self._vllm_url).status()
        if (status["version"], status["fingerprint"]) != (newest.version, newest.fingerprint):
            raise IntegrityError(
                f"vLLM serves version {status['version']} ({status['fingerprint']}), "
                f"the bucket's newest is {newest.version} ({newest.fingerprint})"
            )

    def _agreement(self, weights: dict[str, torch.Tensor], newest: Manifest, temperature: float) -> Agreement:
        model = AutoModelForCausalLM.from_pretrained(self._model, dtype=torch.float32)
        model.load_state_dict(weights, strict=False)  # a tied head has no entry of its own
        model.tie_weights()
        completions = sample(self._vllm_url, self._model, self._prompts(newest), temperature, _TOKENS)
        return compare(model, completions, temperature)

    def _prompts(self, newest: Manifest) -> list[list[int]]:
        """Conversations of recent rollouts, cut where the policy speaks next."""
        prompts = []
        for version in range(newest.version, -1, -1):
            path = layout.rollouts(self._run_id, version)
            if path not in self._bucket.files(path.rsplit("/", 1)[0]):
                continue
            for line in self._bucket.read(path).decode().splitlines():
                messages = json.loads(line)["messages"]
                turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
                tools = [TinyWordle(self._env_url).guess]
                prompts += [render(self._tokenizer, messages[:turn], tools) for turn in turns]
            if len(prompts) >= _PROMPTS:
                break
        return prompts[:_PROMPTS]
