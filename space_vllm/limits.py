"""What vLLM can do and this Space cannot, because the live weights could not follow the published ones bit for bit.

Knows vLLM's names for it, in arguments, in a model's config.json and in its configuration, and imports nothing of it.
The first two are early looks; the configuration, which vLLM makes of everything it is told, decides.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from space_vllm.settings import SettingError

_ONE_WORKER = "this Space serves with one worker only; leave out every parallel size"
_QUANTISED = "quantised weights are packed when they are loaded and cannot follow updates; serve an unquantised model"
_DRAFTER = "a drafter would keep its old weights; leave out speculative decoding"
_ADAPTER = "adapters are no part of the published weights; publish and serve merged weights, without LoRA"
_MADE_UP = "made-up weights are no version of a run; leave out the load format"
_OFFLOADED = "offloaded weights are copied elsewhere and cannot be changed in place; leave out offloading"
_OUTSIDE = "keys and values kept outside the engine would outlive the weights that they come from; leave it out"

# Options of vLLM, the values that do no harm as a pattern, and why the others are refused.
_OPTIONS = (
    (("-tp", "--tensor-parallel-size"), "1", _ONE_WORKER),
    (("-pp", "--pipeline-parallel-size"), "1", _ONE_WORKER),
    (("-dp", "--data-parallel-size"), "1", _ONE_WORKER),
    (("-pcp", "--prefill-context-parallel-size"), "1", _ONE_WORKER),
    (("-dcp", "--decode-context-parallel-size"), "1", _ONE_WORKER),
    (("-q", "--quantization"), "|none", _QUANTISED),
    (("--quantization-config",), "|none", _QUANTISED),
    (("-sc", "--speculative-config"), "|none", _DRAFTER),
    (("--spec-method",), "|none", _DRAFTER),
    (("--spec-model",), "|none", _DRAFTER),
    (("--spec-tokens",), "|none", _DRAFTER),
    (("--enable-lora",), "no", _ADAPTER),
    (("--load-format",), "(?!dummy$).*", _MADE_UP),
    (("--cpu-offload-gb",), r"0(\.0*)?", _OFFLOADED),
    (("--offload-group-size",), "0", _OFFLOADED),
    (("--kv-transfer-config",), "|none", _OUTSIDE),
    (("--kv-offloading-size",), "|none", _OUTSIDE),
)


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises SettingError for the first of vLLM's arguments that asks for what cannot be done."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for options, _, _ in _OPTIONS:
        parser.add_argument(*options, dest=options[-1], nargs="?", const="yes")
    given = vars(parser.parse_known_args([_plain(argument) for argument in arguments])[0])
    for (*_, option), harmless, why in _OPTIONS:
        value = given[option]
        if value is not None and not re.fullmatch(harmless, value, re.IGNORECASE):
            raise SettingError(f"{option} {value}: {why}.")


def check_config(file: Path) -> None:
    """Raises SettingError when the config.json at `file` is one of a quantised model."""
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise SettingError(f"{file} is not JSON: {error}; set MODEL to a model that can be loaded.") from error
    parts = [config, config.get("text_config")] if isinstance(config, dict) else []
    for part in filter(None, parts):
        for name in ("quantization_config", "compression_config"):
            if part.get(name) is not None:
                raise SettingError(f"{file} has a {name}: {_QUANTISED}.")


def refuse_unsafe(vllm_config: Any) -> None:
    """Ends the process with one sentence when vLLM's configuration asks for what cannot be done."""
    for found, why in _found(vllm_config):
        raise SystemExit(f"{found}: {why}.")


def _found(config: Any) -> Iterator[tuple[str, str]]:
    for name, size in _parallel_sizes(config.parallel_config):
        if size != 1:
            yield f"{name} parallelism of size {size}", _ONE_WORKER
    model, offload = config.model_config, config.offload_config
    gb, layers = offload.uva.cpu_offload_gb, offload.prefetch.offload_group_size
    if (model.quantization, model.quantization_config, config.quant_config) != (None, None, None):
        yield f"quantization {model.quantization or 'of some layers'}", _QUANTISED
    if config.speculative_config is not None:
        yield f"speculative decoding by {config.speculative_config.method!r}", _DRAFTER
    if config.lora_config is not None:
        yield f"LoRA with {config.lora_config.max_loras} adapters at a time", _ADAPTER
    if config.load_config.load_format == "dummy":
        yield "load format 'dummy'", _MADE_UP
    if gb or layers:
        yield f"weight offloading ({gb} GiB, groups of {layers} layers)", _OFFLOADED
    if config.kv_transfer_config is not None:
        yield f"the KV connector {config.kv_transfer_config.kv_connector}", _OUTSIDE


def _parallel_sizes(config: Any) -> Iterator[tuple[str, int]]:
    yield "tensor", config.tensor_parallel_size
    yield "pipeline", config.pipeline_parallel_size
    yield "data", config.data_parallel_size
    yield "prefill context", config.prefill_context_parallel_size
    yield "decode context", config.decode_context_parallel_size


def _plain(argument: str) -> str:
    """As vLLM reads it: underscores are dashes, and `--option.key value` sets a part of --option."""
    if not argument.startswith("-"):
        return argument
    option, equals, value = argument.partition("=")
    return option.partition(".")[0].replace("_", "-") + equals + value
