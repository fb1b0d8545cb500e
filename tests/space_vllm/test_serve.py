"""What `python -m space_vllm.serve` checks, and the command that it runs."""

from pathlib import Path

import pytest

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
    found = serve.environment({"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "4", "HOME": "/home"}, cpu=True)
    assert found["VLLM_SERVER_DEV_MODE"] == "0"
    assert (found["VLLM_CPU_KVCACHE_SPACE"], found["VLLM_PLUGINS"]) == ("4", "delta_sync")
    assert found["HOME"] == "/home"


def test_only_on_a_cpu_nothing_is_compiled() -> None:
    assert serve.environment({}, cpu=True)["TORCH_COMPILE_DISABLE"] == "1"
    assert "TORCH_COMPILE_DISABLE" not in serve.environment({}, cpu=False)


def test_a_server_whose_engine_has_died_is_not_kept_up() -> None:
    assert (
        serve.environment({"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}, cpu=True)["VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"] == "0"
    )


def test_arguments_that_this_space_cannot_serve_with_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"BUCKET": f"local:{tmp_path}", "VLLM_API_KEY": "key", "MODEL": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    assert serve.main(["--seed", "1", "-tp", "2"]) == 1
    assert capfd.readouterr().err.startswith("--tensor-parallel-size 2: this Space serves with one worker only")


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


def test_a_hub_that_does_not_answer_is_told_and_is_no_reason_against_a_start(
    capfd: pytest.CaptureFixture[str],
) -> None:
    passing, lasting = SettingError("the Hub is away", may_pass=True), SettingError("MODEL is not set")
    assert serve._may_start([passing])
    assert capfd.readouterr().err == "the Hub is away\n"
    assert not serve._may_start([passing, lasting])
