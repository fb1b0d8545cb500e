"""`python -m space_vllm.serve [vLLM's own arguments]`: checks the settings, then runs vLLM's server, again and again.

Arguments given here come after the Space's own and win. Knows how vLLM is started, nothing of weights.
"""

import importlib.metadata
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers.utils import cached_file
from transformers.utils.hub import HfHubHTTPError, LocalEntryNotFoundError, is_offline_mode

from shared.bucket import open_bucket
from shared.errors import BucketError
from shared.output import complain
from space_vllm.limits import check_arguments, check_config
from space_vllm.plugin import NAME
from space_vllm.settings import SettingError, Settings
from space_vllm.supervisor import Limits, Supervisor

_SERVER = "vllm.entrypoints.openai.api_server"  # the CPU build has no `vllm` command

_ARGUMENTS = (
    *("--logprobs-mode", "processed_logprobs"),  # a trainer's importance ratios are wrong with any other
    *("--worker-extension-cls", "space_vllm.worker.WorkerExtension"),
    *("--middleware", "space_vllm.guard.Guard"),
    *("--disable-access-log-for-endpoints", "/health"),  # one line per look would bury the others
)
# float32 holds every bf16 value and is faster than bf16 without hardware for it. Chunked prefill with a seed in the
# request ends the CPU engine, and without it a whole prompt has to fit the batch.
_CPU_ARGUMENTS = (
    *("--dtype", "float32", "--enforce-eager"),
    *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"),
)
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "GRADIO_ANALYTICS_ENABLED": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",  # 5 s would cut connections that a trainer is about to use again
}
_FORCED = {"VLLM_PLUGINS": NAME, "VLLM_SERVER_DEV_MODE": "0", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "0"}


def main(arguments: Sequence[str]) -> int:
    try:
        settings = Settings.from_environment(os.environ)
        check_arguments(arguments)
        check_address(arguments)
        check_plugin()
        open_bucket(settings.bucket, settings.hf_token)
        check_port(settings.host, settings.port)
        check_model(settings)
    except (SettingError, BucketError) as error:
        complain(str(error))
        return 1
    asked = command(settings, arguments, on_cpu())
    server = Supervisor(asked, environment(os.environ), settings.host, settings.port, Limits())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: server.ask_to_end(number))
    return server.run()


def command(settings: Settings, arguments: Sequence[str], cpu: bool) -> list[str]:
    """No key and no token: those stay in the environment."""
    place = ("--model", settings.model, "--served-model-name", settings.served_model_name)
    address = ("--host", settings.host, "--port", str(settings.port))
    defaults = _CPU_ARGUMENTS if cpu else ()
    return [sys.executable, "-m", _SERVER, *place, *address, *_ARGUMENTS, *defaults, *arguments]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    return {**_ENVIRONMENT, **given, **_FORCED}


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
            raise SettingError(f"cannot listen on {host}:{port}: {error.strerror}; set PORT to a free one.") from error


def check_address(arguments: Sequence[str]) -> None:
    """What looks after the server has to know where it is."""
    for argument in arguments:
        if re.match(r"--(host|port|uds)(=|$)", argument):
            raise SettingError(f"{argument}: set HOST and PORT in the environment instead.")


def check_model(settings: Settings) -> None:
    """A folder with a model that is not quantised, or an id of one that the Hub or its cache here knows.

    Nothing is said against an id while the Hub does not answer.
    """
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
        reason = " ".join(str(error).split())
        if not _may_pass(error.__cause__):
            raise SettingError(f"MODEL {settings.model!r} cannot be had: {reason}") from error
        complain(f"MODEL {settings.model!r} cannot be had now: {reason}")
        return
    check_config(Path(config))


def _may_pass(error: BaseException | None) -> bool:
    """Whether the Hub may answer later what it does not answer now."""
    if isinstance(error, HfHubHTTPError):
        return bool(error.response.status_code == 429 or error.response.status_code >= 500)
    return isinstance(error, LocalEntryNotFoundError) and not is_offline_mode()


def check_plugin() -> None:
    """vLLM logs a plugin that it cannot find and goes on without."""
    for group in ("vllm.general_plugins", "vllm.endpoint_plugins"):
        if NAME not in importlib.metadata.entry_points(group=group).names:
            raise SettingError(f"the plugin {NAME} is not in {group}: install this project (`pip install -e .`).")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
