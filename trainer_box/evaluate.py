"""How well a policy plays Wordle: whole games on given seeds, in conversations built exactly as TRL builds rollouts.

Knows the texts of the game and two ways to generate. Knows no training and no weights.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
import stamina
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from shared.errors import SyncError
from shared.wordle import GUESSES
from trainer_box.conversation import Message, Tool, check_template, parse_answer, render, tool_result
from trainer_box.headers import vllm_headers

EVALUATION_SEEDS = range(1_000_000, 1_000_200)
AT_ONCE = 64
_ATTEMPTS = 4

Generate = Callable[[list[list[int]]], Coroutine[Any, Any, list[list[int]]]]
"""Prompts as token ids to the generated token ids, in the same order, end-of-turn token included."""


class Environment(Protocol):
    """A TRL-style Wordle. As in TRL, a method is either a coroutine function, or may block and runs on a thread."""

    def reset(self, *, prompt: list[Message], seed: int) -> str | None: ...

    def guess(self, word: str) -> str | Awaitable[str]: ...

    def get_reward(self) -> float | None | Awaitable[float | None]: ...


@dataclass(frozen=True)
class Score:
    games: int
    solve_rate: float
    mean_reward: float
    invalid_per_game: float
    mean_turns: float


async def evaluate(
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    environment_factory: Callable[[], Environment],
    seeds: Sequence[int],
) -> Score:
    """One game per seed, 64 at a time, in step. ValueError: no seeds, or a chat template other than Qwen3's.
    SyncError: a game without a reward. What `generate` and the environment raise passes through."""
    if not seeds:
        raise ValueError("no seeds to evaluate on; give at least one")
    check_template(tokenizer)
    environments = [environment_factory() for _ in range(min(AT_ONCE, len(seeds)))]
    games: list[_Game] = []
    for start in range(0, len(seeds), AT_ONCE):
        block = seeds[start : start + AT_ONCE]
        games += await _play(generate, tokenizer, environments[: len(block)], block)
    return _score(games)


async def _play(
    generate: Generate, tokenizer: PreTrainedTokenizerBase, environments: list[Environment], seeds: Sequence[int]
) -> "list[_Game]":
    games = [_Game(environment, seed) for environment, seed in zip(environments, seeds, strict=True)]
    await asyncio.gather(*(game.start() for game in games))
    for _ in range(GUESSES):
        playing = [game for game in games if not game.over]
        prompts = [render(tokenizer, game.messages, game.tools) for game in playing]
        answers = await generate(prompts) if prompts else []
        for game, prompt, answer in zip(playing, prompts, answers, strict=True):
            game.messages.append(parse_answer(tokenizer, prompt, answer, game.tools))
        await asyncio.gather(*(game.execute_calls() for game in playing))
    await asyncio.gather(*(game.finish() for game in games))
    return games


@dataclass
class _Game:
    environment: Environment
    seed: int
    messages: list[Message] = field(default_factory=list)
    over: bool = False
    solved: bool = False
    turns: int = 0
    invalid: int = 0
    reward: float = 0.0

    @property
    def tools(self) -> list[Tool]:
        return [self.environment.guess]

    async def start(self) -> None:
        prompt = [{"role": "user", "content": ""}]
        observation = await _run(self.environment.reset, prompt=prompt, seed=self.seed)
        self.messages = [{"role": "user", "content": observation or ""}]

    async def execute_calls(self) -> None:
        """Runs the calls of the last answer; an answer without a call gives the game up."""
        calls = self.messages[-1].get("tool_calls")
        self.over = not calls
        for call in calls or []:
            name = call["function"]["name"]
            self.messages.append(tool_result(name, await self._execute(name, call["function"]["arguments"])))

    async def _execute(self, name: str, arguments: Any) -> str:
        if name != "guess":
            return str({"error": f"unknown tool {name}"})
        try:
            observation = str(await _run(self.environment.guess, **arguments))
        except TypeError as error:  # arguments that do not fit the tool: the model reads what TRL would show it
            return str({"error": str(error)})
        if not self.over:
            self._count(observation)
        return observation

    def _count(self, observation: str) -> None:
        self.turns += 1
        self.invalid += observation.startswith("invalid word")
        self.solved = observation.endswith(" won")
        self.over = self.solved or observation.endswith(" lost")

    async def finish(self) -> None:
        reward = await _run(self.environment.get_reward)
        if reward is None:
            raise SyncError(f"the environment gave no reward for the game of seed {self.seed}; is it reachable?")
        self.reward = reward


async def _run(method: Callable[..., Any], **arguments: Any) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method(**arguments)
    return await asyncio.to_thread(method, **arguments)


def _score(games: list[_Game]) -> Score:
    return Score(
        games=len(games),
        solve_rate=sum(game.solved for game in games) / len(games),
        mean_reward=sum(game.reward for game in games) / len(games),
        invalid_per_game=sum(game.invalid for game in games) / len(games),
        mean_turns=sum(game.turns for game in games) / len(games),
    )


@asynccontextmanager
async def served_policy(
    url: str, model: str, *, temperature: float = 0.0, max_tokens: int = 16, deadline_s: float = 120.0
) -> AsyncIterator[Generate]:
    """Generates through a vLLM server's `/v1/completions`, asking again after a broken connection. 16 tokens hold
    a guess of the tiny policy; Qwen's own tokenizer needs about 40. The deadline covers one call for all prompts.
    SyncError: no usable answer, in time."""
    body = {"model": model, "temperature": temperature, "max_tokens": max_tokens, "return_token_ids": True}
    async with httpx.AsyncClient(
        base_url=url,
        headers=vllm_headers(url),
        limits=httpx.Limits(max_connections=AT_ONCE),
        timeout=None,
        trust_env=False,
    ) as client:

        async def generate(prompts: list[list[int]]) -> list[list[int]]:
            try:
                async with asyncio.timeout(deadline_s):
                    return await asyncio.gather(*(_complete(client, {**body, "prompt": prompt}) for prompt in prompts))
            except TimeoutError:
                raise SyncError(
                    f"{url} did not answer {len(prompts)} prompts in {deadline_s:g} s; is the server healthy?"
                ) from None

        yield generate


async def _complete(client: httpx.AsyncClient, body: dict[str, Any]) -> list[int]:
    ask_again = stamina.AsyncRetryingCaller(attempts=_ATTEMPTS).on(httpx.TransportError)
    try:
        response = await ask_again(client.post, "/v1/completions", json=body)
    except httpx.TransportError as error:
        raise SyncError(f"{client.base_url} is unreachable: {error!r}; is the server running?") from error
    if response.status_code != 200:
        raise SyncError(
            f"{client.base_url} refused a completion of model {body['model']!r} with {response.status_code}: "
            f"{response.text[:200]}"
        )
    token_ids: list[int] = response.json()["choices"][0]["token_ids"]
    return token_ids


def local_policy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, temperature: float = 0.0, max_tokens: int = 16
) -> Generate:
    """Generates with a transformers model, from torch's global random state."""
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}

    async def generate(prompts: list[list[int]]) -> list[list[int]]:
        batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(model.device)
        with torch.inference_mode():
            output = model.generate(**batch, **sampling, max_new_tokens=max_tokens)
        return [_up_to(ids, tokenizer.eos_token_id) for ids in output[:, batch["input_ids"].shape[1] :].tolist()]

    return generate


def _up_to(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids
