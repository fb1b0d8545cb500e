"""A short check of a running fleet with its keys: weights are verified, tokens come, a game is played to its end.

Trains nothing and publishes nothing. Knows the units' interfaces as the trainer does.
"""

import asyncio
import time

import httpx
from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed

from shared.errors import SyncError
from shared.health import Report
from trainer_box.headers import environment_headers, vllm_headers
from trainer_box.replica import Replica

_ANSWER_S = 60.0
_TOKENS = 16
_GUESSES = ("crane", "moist", "built", "dodgy", "flask", "vexed")
_FAILURES = (OSError, ConnectionClosed, RuntimeError, ValueError)


def check(vllm_url: str, env_url: str, model: str, report: Report) -> None:
    """Keys and token are read from the environment, as the trainer reads them. Raises SyncError."""
    replica = Replica(vllm_url)
    status = replica.status()
    if model not in (served := replica.served_models()):
        raise SyncError(
            f"smoke: vLLM at {vllm_url} serves {', '.join(served)}, not {model}; look at its variable MODEL"
        )
    report(f"smoke: vLLM serves version {status.get('version')}, fingerprint {status.get('fingerprint')}")
    report(f"smoke: vLLM answered {_TOKENS} tokens in {_complete(replica.url, model):.1f} s")
    report(f"smoke: the environment played a game, reward {asyncio.run(_play(env_url)):+.2f}")


def _complete(url: str, model: str) -> float:
    """Seconds for one short answer."""
    payload = {"model": model, "prompt": "The secret word is", "max_tokens": _TOKENS, "ignore_eos": True}
    started = time.monotonic()
    try:
        answer = httpx.post(
            f"{url}/v1/completions", json=payload, headers=vllm_headers(url), timeout=_ANSWER_S, trust_env=False
        )
    except httpx.HTTPError as error:
        raise SyncError(f"smoke: vLLM at {url} gave no completion: {str(error) or type(error).__name__}") from error
    if answer.status_code != 200:
        raise SyncError(f"smoke: vLLM at {url} answered HTTP {answer.status_code} to a completion; look at its log")
    return time.monotonic() - started


async def _play(url: str) -> float:
    """What a whole game paid."""
    headers = environment_headers(url)
    try:
        async with GenericEnvClient(url, message_timeout_s=_ANSWER_S, headers=headers) as client:
            result = await client.reset(seed=0)
            for word in _GUESSES:
                if not result.done:
                    result = await client.step({"word": word})
    except _FAILURES as error:
        raise SyncError(f"smoke: a game at {url} failed: {str(error) or type(error).__name__}") from error
    if not result.done:
        raise SyncError(f"smoke: a game at {url} did not end after {len(_GUESSES)} guesses; is it this project's?")
    return float(result.observation["score"])
