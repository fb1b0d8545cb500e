"""`python -m space_vllm.serve [vLLM's own arguments]`: looks for what is missing, runs vLLM's server again and again.

Arguments given here come after the Space's own and win. Knows how vLLM is started, nothing of weights.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from shared.output import complain
from space_vllm import preflight
from space_vllm.plugin import NAME
from space_vllm.settings import SettingError, Settings
from space_vllm.setup import wait_until_set_up
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
# What little vLLM compiles then would need a C++ compiler on the machine.
_CPU_ENVIRONMENT = {"TORCH_COMPILE_DISABLE": "1"}
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "GRADIO_ANALYTICS_ENABLED": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",  # 5 s would cut connections that a trainer is about to use again
}
_FORCED = {"VLLM_PLUGINS": NAME, "VLLM_SERVER_DEV_MODE": "0", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "0"}


def main(arguments: Sequence[str]) -> int:
    settings, wrong = Settings.read(os.environ)
    try:
        preflight.check_port(settings.host, settings.port)
    except SettingError as error:
        complain(str(error))
        return 1
    look = partial(_problems, settings, wrong, arguments)
    if space_id := os.environ.get("SPACE_ID"):
        if not wait_until_set_up(settings, space_id, look):
            return 0
    elif not _may_start(look()):
        return 1
    cpu = preflight.on_cpu()
    asked, given = command(settings, arguments, cpu), environment(os.environ, cpu)
    server = Supervisor(asked, given, settings.host, settings.port, Limits())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: server.ask_to_end(number))
    return server.run()


def _problems(settings: Settings, wrong: list[SettingError], arguments: Sequence[str]) -> list[SettingError]:
    return [*wrong, *preflight.problems(settings, arguments)]


def _may_start(problems: Sequence[SettingError]) -> bool:
    """A Hub that does not answer is no reason against it: the server waits for its bucket too."""
    for problem in problems:
        complain(str(problem))
    return all(problem.may_pass for problem in problems)


def command(settings: Settings, arguments: Sequence[str], cpu: bool) -> list[str]:
    """No key and no token: those stay in the environment."""
    place = ("--model", settings.model, "--served-model-name", settings.served_model_name)
    address = ("--host", settings.host, "--port", str(settings.port))
    defaults = _CPU_ARGUMENTS if cpu else ()
    return [sys.executable, "-m", _SERVER, *place, *address, *_ARGUMENTS, *defaults, *arguments]


def environment(given: Mapping[str, str], cpu: bool) -> dict[str, str]:
    defaults = _CPU_ENVIRONMENT if cpu else {}
    return {**_ENVIRONMENT, **defaults, **given, **_FORCED}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
