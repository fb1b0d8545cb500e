"""What must be true before a model is loaded, so that a wrong setting is one sentence now, not a stack trace later."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
import torch

from shared import health, strict_json
from shared.auth import is_address
from shared.bucket import Bucket
from shared.errors import SyncError
from shared.health import Report
from shared.identity import VERSION
from shared.types import Json
from trainer_box.headers import environment_headers
from trainer_box.replica import Replica

LOGPROBS_MODE = "processed_logprobs"
_HOLD_BF16 = ("bfloat16", "float32")
_PROJECT, _CAPACITY = "project", "capacity"


@dataclass(frozen=True)
class Expected:
    """What the trainer was told, and the units have to be told too. `in_flight` rollouts are made at once."""

    model: str
    bucket: str
    run_id: str
    in_flight: int


def check_one_process() -> None:
    """Raises SyncError under a launcher that starts several processes."""
    if (size := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise SyncError(
            f"WORLD_SIZE is {size or 'empty'}, but training runs in one process for now; start it without "
            "a launcher such as torchrun or accelerate"
        )


def check_one_gpu() -> None:
    """Raises SyncError where transformers would spread the model over several GPUs by itself."""
    if torch.cuda.device_count() > 1:
        raise SyncError(
            f"{torch.cuda.device_count()} GPUs are visible, but training uses one; choose it with CUDA_VISIBLE_DEVICES"
        )


def check_bucket(bucket: Bucket) -> None:
    """Write a file and delete it: a token that may only read is told now. Raises BucketError."""
    probe = f".preflight-{secrets.token_hex(4)}"
    bucket.write(probe, b"whether this trainer may write here")
    bucket.delete([probe])


def check_replica(replica: Replica, expected: Expected, deadline_s: float, report: Report) -> Json:
    """The Space's status, once it is well, is of this release, and serves what is to be trained."""
    replica.wait_until_healthy(deadline_s, report)
    where, status = f"vLLM at {replica.url}", replica.status()
    _check_release(where, status)
    served = replica.served_models()
    if expected.model not in served:
        raise SyncError(
            f"{where} serves {', '.join(served)}, not {expected.model!r}; set SERVED_MODEL_NAME there or --model"
        )
    if (mode := status.get("logprobs_mode")) != LOGPROBS_MODE:
        raise SyncError(
            f"{where} runs with --logprobs-mode {mode}, which would skew every importance ratio at "
            f"temperatures other than 1; start it with --logprobs-mode {LOGPROBS_MODE}"
        )
    _check_agreement(where, status, expected)
    return status


def check_environment(url: str, in_flight: int, deadline_s: float, report: Report) -> Json:
    """The environment's status, once it is well; empty for one of another make, of which `/health` is all that counts.

    Raises SyncError.
    """
    where = f"the environment at {url}"
    if not is_address(url):
        raise SyncError(f"{where} cannot be reached: an address looks like http://host:port; set --env-url")
    headers = environment_headers(url)
    health.wait(where, lambda: health.problem_of(url, headers), deadline_s, report)
    status = _status_of_environment(url, where, headers)
    if _PROJECT not in status:
        return {}
    _check_release(where, status)
    capacity = status.get(_CAPACITY)
    if type(capacity) is not int or capacity < in_flight:
        raise SyncError(
            f"{where} has {capacity} seats, and {in_flight} rollouts are made at once; lower --max-inflight-tasks"
        )
    return status


def _status_of_environment(url: str, where: str, headers: Mapping[str, str]) -> Json:
    try:
        answer = health.get(f"{url.rstrip('/')}/status", headers)
    except TimeoutError:
        raise SyncError(f"{where} gives no status within {health.ANSWER_S:.0f} s; is it overloaded?") from None
    except httpx.HTTPError as error:
        raise SyncError(f"{where} cannot be reached: {str(error) or type(error).__name__}; is it running?") from error
    if answer.status_code in (401, 403):
        raise SyncError(f"{where} refused the key (HTTP {answer.status_code}); set ENV_API_KEY to its key")
    try:
        status = strict_json.parse(answer.content)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


def _check_release(where: str, status: Json) -> None:
    if (release := status.get(_PROJECT)) != VERSION:
        raise SyncError(
            f"{where} is release {release or 'unknown'} of this project, and this trainer is {VERSION}; bring both to "
            "one release (a Space by python -m trainer_box.deploy)"
        )


def _check_agreement(where: str, status: Json, expected: Expected) -> None:
    if (bucket := status.get("bucket")) != expected.bucket:
        raise SyncError(f"{where} follows bucket {bucket}, not {expected.bucket}; set BUCKET there, or --bucket")
    if (run_id := status.get("pinned_run")) not in (None, expected.run_id):
        raise SyncError(
            f"{where} stays with run {run_id!r}, not {expected.run_id!r}; unset RUN_ID there, or set --run-id"
        )
    if (dtype := status.get("dtype")) not in _HOLD_BF16:
        raise SyncError(
            f"{where} computes in {dtype}, which cannot hold every bf16 value that is published; choose hardware with "
            "bf16, or start it with --dtype bfloat16"
        )
