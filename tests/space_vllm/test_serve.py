"""What `python -m space_vllm.serve` checks, and the command that it runs."""

import socket
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from space_vllm import serve
from space_vllm.settings import SettingError
from tests.space_vllm.fakes import make_settings


def test_arguments_given_by_hand_come_last_and_so_win(tmp_path: Path) -> None:
    command = serve.command(make_settings(tmp_path), ["--dtype", "bfloat16"], cpu=True)
    assert command[-2:] == ["--dtype", "bfloat16"]
    assert command.index("float32") < command.index("bfloat16")


def test_no_key_is_on_the_command_line(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    assert not [part for part in serve.command(settings, [], cpu=False) if settings.api_key in part]


def test_logprobs_are_processed_and_only_a_cpu_gets_the_cpu_arguments(tmp_path: Path) -> None:
    command = serve.command(make_settings(tmp_path), [], cpu=False)
    assert command[command.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert "--dtype" not in command


def test_dev_mode_stays_off_and_defaults_can_be_overridden() -> None:
    found = serve.environment({"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "4", "HOME": "/home"})
    assert found["VLLM_SERVER_DEV_MODE"] == "0"
    assert (found["VLLM_CPU_KVCACHE_SPACE"], found["VLLM_PLUGINS"]) == ("4", "delta_sync")
    assert found["HOME"] == "/home"


def test_a_server_whose_engine_has_died_is_not_kept_up() -> None:
    assert serve.environment({"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"})["VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"] == "0"


@pytest.mark.parametrize("argument", ["--port", "--port=8000", "--host", "--uds=/tmp/socket"])
def test_another_address_than_that_of_the_environment_is_refused(argument: str) -> None:
    serve.check_address(["--model", "port", "--max-model-len", "8"])
    with pytest.raises(SettingError, match=f"^{argument}: set HOST and PORT in the environment instead"):
        serve.check_address(["--seed", "1", argument, "8000"])


def test_arguments_that_this_space_cannot_serve_with_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"BUCKET": f"local:{tmp_path}", "VLLM_API_KEY": "key", "MODEL": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    assert serve.main(["--seed", "1", "-tp", "2"]) == 1
    assert capfd.readouterr().err.startswith("--tensor-parallel-size 2: this Space serves with one worker only")


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            serve.check_port("127.0.0.1", port)
    serve.check_port("127.0.0.1", port)
    serve.check_port("::", port)


def test_a_folder_without_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = {"BUCKET": f"local:{tmp_path}", "VLLM_API_KEY": "key", "HOST": "127.0.0.1", "PORT": "39217"}
    for name, value in {**environment, "MODEL": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    assert serve.main([]) == 1
    printed = capfd.readouterr().err
    assert printed.startswith(f"MODEL is '{tmp_path}', but there is no config.json")
    assert printed.count("\n") == 1


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    settings = replace(make_settings(tmp_path), model=str(tmp_path))
    with pytest.raises(SettingError, match="has a quantization_config: .*serve an unquantised model"):
        serve.check_model(settings)
    (tmp_path / "config.json").write_text("{}")
    serve.check_model(settings)


class Hub:
    """In the place of `cached_file`: refuses, as transformers tells it."""

    def __init__(self, cause: Exception) -> None:
        self._cause = cause

    def __call__(self, *_: str, **__: str | None) -> str:
        raise OSError("the Hub\nsays no") from self._cause


def of_status(code: int) -> HfHubHTTPError:
    return HfHubHTTPError("refused", response=httpx2.Response(code, request=httpx2.Request("GET", "http://hub")))


@pytest.mark.parametrize("cause", [of_status(429), of_status(503), LocalEntryNotFoundError("no network")])
def test_nothing_is_said_against_a_model_while_the_hub_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cause: Exception
) -> None:
    monkeypatch.setattr(serve, "is_offline_mode", lambda: False)
    monkeypatch.setattr(serve, "cached_file", Hub(cause))
    serve.check_model(replace(make_settings(tmp_path), model="someone/model"))
    assert capfd.readouterr().err == "MODEL 'someone/model' cannot be had now: the Hub says no\n"


@pytest.mark.parametrize("cause", [of_status(403), of_status(404), ValueError("no model id")])
def test_a_model_that_the_hub_does_not_give_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    monkeypatch.setattr(serve, "cached_file", Hub(cause))
    with pytest.raises(SettingError, match="^MODEL 'someone/model' cannot be had: the Hub says no$"):
        serve.check_model(replace(make_settings(tmp_path), model="someone/model"))


def test_offline_a_model_that_is_not_here_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "is_offline_mode", lambda: True)
    monkeypatch.setattr(serve, "cached_file", Hub(LocalEntryNotFoundError("not in the cache")))
    with pytest.raises(SettingError, match="^MODEL 'someone/model' cannot be had"):
        serve.check_model(replace(make_settings(tmp_path), model="someone/model"))
