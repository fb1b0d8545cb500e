"""How long completions may be on a Space: the Hub's proxy cuts every answer after about a minute.

Measured by asking as the rollouts will, all at once. Elsewhere nothing is asked. Knows no weights.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx

from shared.auth import is_space
from shared.errors import SyncError
from shared.health import Report
from trainer_box.headers import vllm_headers

PROXY_S = 60.0
_SAFE_S = 45.0  # of these, for the tokens; the rest is the way there and back, and bad luck
_TOKENS = 32


def check(url: str, model: str, in_flight: int, longest: int, report: Report) -> None:
    """Say how long a completion may be, and raise SyncError when `longest` tokens are more."""
    if not is_space(url):
        return
    rate = slowest_rate(url, model, max(1, in_flight))
    safe = int(rate * _SAFE_S)
    report(
        f"{in_flight} answers at once come at {rate:.0f} tokens/s or faster each, so a completion of up to {safe} "
        f"tokens is safe from the proxy at {urlsplit(url).hostname}, which cuts answers after about {PROXY_S:.0f} s"
    )
    if longest > safe:
        raise SyncError(
            f"a completion may have {longest} tokens, and the proxy of Spaces would cut those over {safe}; lower "
            "--max-completion-length or --max-inflight-tasks, or choose faster hardware for the Space"
        )


def slowest_rate(url: str, model: str, in_flight: int) -> float:
    """Tokens per second of the answer that took longest, when as many are asked for as there will be rollouts."""
    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    with (
        httpx.Client(headers=vllm_headers(url), timeout=PROXY_S, limits=limits, trust_env=False) as client,
        ThreadPoolExecutor(in_flight) as pool,
    ):
        seconds = list(pool.map(lambda number: _seconds(client, url, model, number), range(in_flight)))
    return _TOKENS / max(seconds)


def _seconds(client: httpx.Client, url: str, model: str, number: int) -> float:
    payload = {"model": model, "prompt": f"{number}", "max_tokens": _TOKENS, "ignore_eos": True, "seed": number}
    started = time.monotonic()
    try:
        answer = client.post(f"{url}/v1/completions", json=payload)
    except httpx.HTTPError as error:
        raise SyncError(f"vLLM at {url} gave no completion: {str(error) or type(error).__name__}") from error
    if answer.status_code != 200:
        raise SyncError(f"vLLM at {url} gave no completion, but HTTP {answer.status_code}; look at its log")
    return time.monotonic() - started
