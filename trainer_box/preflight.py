"""What must be true before a model is loaded, so that a wrong setting is one sentence now, not a stack trace later."""

import os

import httpx
import torch

from shared.auth import auth_headers
from shared.errors import SyncError
from trainer_box.replica import Replica

LOGPROBS_MODE = "processed_logprobs"


def check_one_process() -> None:
    """Raises SyncError under a launcher that starts several processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SyncError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but training runs in one process for now; start it without "
            "a launcher such as torchrun or accelerate"
        )


def check_one_gpu() -> None:
    """Raises SyncError where transformers would spread the model over several GPUs by itself."""
    if torch.cuda.device_count() > 1:
        raise SyncError(
            f"{torch.cuda.device_count()} GPUs are visible, but training uses one; choose it with CUDA_VISIBLE_DEVICES"
        )


def check_replica(replica: Replica, model: str, deadline_s: float) -> None:
    """Wait for the Space, and check that it serves `model` and answers with the log-probabilities that GRPO needs."""
    replica.wait_until_healthy(deadline_s)
    served = replica.served_models()
    if model not in served:
        raise SyncError(
            f"vLLM at {replica.url} serves {', '.join(served)}, not {model!r}; set SERVED_MODEL_NAME there or --model"
        )
    mode = replica.status().get("logprobs_mode")
    if mode != LOGPROBS_MODE:
        raise SyncError(
            f"vLLM at {replica.url} runs with --logprobs-mode {mode}, which would skew every importance ratio at "
            f"temperatures other than 1; start it with --logprobs-mode {LOGPROBS_MODE}"
        )


def check_environment(url: str) -> None:
    """Raises SyncError unless the environment answers."""
    try:
        headers = auth_headers(url, None, os.environ.get("HF_TOKEN"))
        status = httpx.get(f"{url.rstrip('/')}/health", headers=headers, timeout=10, trust_env=False).status_code
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise SyncError(f"the environment at {url} cannot be reached: {error}; is it running?") from error
    if status != 200:
        raise SyncError(f"the environment at {url} answered HTTP {status} on /health; is it running?")
