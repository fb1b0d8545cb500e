"""What asks vLLM for weights that could not follow updates is refused, as early as it can be seen."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from space_vllm.limits import check_arguments, check_config, refuse_unsafe
from space_vllm.settings import SettingError

REFUSED = [
    (["-tp", "2"], "--tensor-parallel-size 2: .*one worker only"),
    (["--pipeline-parallel-size=2"], "--pipeline-parallel-size 2: .*one worker only"),
    (["--data_parallel_size", "4"], "--data-parallel-size 4: .*one worker only"),
    (["-dcp=2"], "--decode-context-parallel-size 2: .*one worker only"),
    (["--prefill_context_parallel_size=2"], "--prefill-context-parallel-size 2: .*one worker only"),
    (["-q", "fp8"], "--quantization fp8: quantised weights"),
    (["--quantization=bitsandbytes"], "--quantization bitsandbytes: quantised weights"),
    (["--quantization_config", '{"linear": "fp8"}'], "--quantization-config .*: quantised weights"),
    (["-sc", '{"method": "ngram"}'], "--speculative-config .*ngram.*: a drafter"),
    (["--speculative_config.method", "ngram"], "--speculative-config ngram: a drafter"),
    (["--spec-method=mtp"], "--spec-method mtp: a drafter"),
    (["--enable-lora", "--max-loras", "2"], "--enable-lora yes: adapters"),
    (["--load_format", "Dummy"], "--load-format Dummy: made-up weights"),
    (["--cpu-offload-gb=0.5"], "--cpu-offload-gb 0.5: offloaded weights"),
    (["--offload-group-size", "4"], "--offload-group-size 4: offloaded weights"),
    (["--kv-transfer-config", "{}"], "--kv-transfer-config {}: keys and values"),
    (["--kv_offloading_size=1"], "--kv-offloading-size 1: keys and values"),
    (["-tp", "1", "-tp", "2"], "--tensor-parallel-size 2"),
]
ALLOWED = [
    [],
    ["-tp", "1", "-pp=1", "--data_parallel_size=1"],
    ["--quantization", "None", "-q=", "--speculative-config", "None"],
    ["--cpu-offload-gb", "0", "--cpu-offload-gb=0.0", "--offload-group-size=0"],
    ["--load-format=safetensors", "--dtype", "bfloat16", "--max-model-len", "1024", "--no-enable-lora"],
    ["--hf-overrides", '{"a-q": "-tp 2"}', "--seed", "-1"],
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_an_argument_that_cannot_be_served_is_named_with_its_value(arguments: list[str], sentence: str) -> None:
    with pytest.raises(SettingError, match=f"^{sentence}"):
        check_arguments(["--seed", "1", *arguments, "--enforce-eager"])


@pytest.mark.parametrize("arguments", ALLOWED)
def test_arguments_that_do_no_harm_pass(arguments: list[str]) -> None:
    check_arguments(arguments)


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"quant_method": "fp8"}},
        {"compression_config": {"format": "pack-quantized"}},
        {"text_config": {"quantization_config": {}}},
    ],
)
def test_a_quantised_model_is_refused_before_it_is_loaded(tmp_path: Path, config: dict[str, Any]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "qwen3", **config}))
    with pytest.raises(SettingError, match=f"^{re.escape(str(file))} has a .*serve an unquantised model"):
        check_config(file)


@pytest.mark.parametrize("config", [{}, {"quantization_config": None, "text_config": None}, {"text_config": {}}])
def test_a_model_that_is_not_quantised_passes(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_config(tmp_path / "config.json")


def test_a_config_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff{")
    with pytest.raises(SettingError, match="config.json is not JSON"):
        check_config(tmp_path / "config.json")


def plain_config() -> SimpleNamespace:
    """The part of vLLM's configuration that is looked at, as it is for a plain model on one GPU."""
    names = ("tensor", "pipeline", "data", "prefill_context", "decode_context")
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{f"{name}_parallel_size": 1 for name in names}),
        model_config=SimpleNamespace(quantization=None, quantization_config=None),
        quant_config=None,
        speculative_config=None,
        lora_config=None,
        load_config=SimpleNamespace(load_format="auto"),
        offload_config=SimpleNamespace(
            uva=SimpleNamespace(cpu_offload_gb=0), prefetch=SimpleNamespace(offload_group_size=0)
        ),
        kv_transfer_config=None,
    )


def change(config: Any, path: str, value: Any) -> None:
    *parts, name = path.split(".")
    for part in parts:
        config = vars(config)[part]
    vars(config)[name] = value


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("parallel_config.tensor_parallel_size", 2, "tensor parallelism of size 2: .*one worker only"),
        ("parallel_config.pipeline_parallel_size", 2, "pipeline parallelism of size 2: .*one worker only"),
        ("parallel_config.data_parallel_size", 2, "data parallelism of size 2: .*one worker only"),
        ("parallel_config.prefill_context_parallel_size", 2, "prefill context parallelism of size 2: "),
        ("parallel_config.decode_context_parallel_size", 2, "decode context parallelism of size 2: "),
        ("model_config.quantization", "fp8", "quantization fp8: .*unquantised"),
        ("model_config.quantization_config", {"linear": "fp8"}, "quantization of some layers: .*unquantised"),
        ("quant_config", object(), "quantization of some layers: .*unquantised"),
        ("speculative_config", SimpleNamespace(method="ngram"), "speculative decoding by 'ngram': a drafter"),
        ("lora_config", SimpleNamespace(max_loras=1), "LoRA with 1 adapters at a time: adapters"),
        ("load_config.load_format", "dummy", "load format 'dummy': made-up weights"),
        ("offload_config.uva.cpu_offload_gb", 0.5, r"weight offloading \(0.5 GiB, groups of 0 layers\): "),
        ("offload_config.prefetch.offload_group_size", 4, r"weight offloading \(0 GiB, groups of 4 layers\): "),
        ("kv_transfer_config", SimpleNamespace(kv_connector="LMCache"), "the KV connector LMCache: keys and values"),
    ],
)
def test_an_unsafe_configuration_ends_the_process_with_one_sentence(path: str, value: Any, sentence: str) -> None:
    config = plain_config()
    refuse_unsafe(config)
    change(config, path, value)
    with pytest.raises(SystemExit, match=f"^{sentence}"):
        refuse_unsafe(config)


@pytest.mark.slow
def test_vllms_own_configuration_is_judged_as_it_is_built(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "")  # none are to change this process
    from vllm.engine.arg_utils import EngineArgs

    def built(**arguments: Any) -> Any:
        return EngineArgs(model=str(model_folder), enforce_eager=True, **arguments).create_engine_config()

    refuse_unsafe(built())
    refused: list[tuple[dict[str, Any], str]] = [
        ({"load_format": "dummy"}, "load format"),
        ({"cpu_offload_gb": 1}, "weight offloading"),
        ({"enable_lora": True}, "LoRA"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative decoding"),
        ({"kv_offloading_size": 1.0}, "the KV connector"),
    ]
    for arguments, sentence in refused:
        with pytest.raises(SystemExit, match=sentence):
            refuse_unsafe(built(**arguments))
