"""What `python -m space_vllm.serve` looks at before it starts vLLM, and that it tells everything at once."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils._xet import abort_xet_session

from shared.bucket import open_bucket
from space_vllm import preflight
from space_vllm.settings import Place, SettingError
from tests.hub import StandIn, stand_in
from tests.space_vllm.fakes import make_settings

BUCKET, TOKEN = "user/weights", "hf_the_token_of_a_space"


@pytest.mark.parametrize("argument", ["--port", "--port=8000", "--host", "--uds=/tmp/socket"])
def test_another_address_than_that_of_the_environment_is_refused(argument: str) -> None:
    preflight.check_address(["--model", "port", "--max-model-len", "8"])
    with pytest.raises(SettingError, match=f"^{argument}: set HOST and PORT in the environment instead"):
        preflight.check_address(["--seed", "1", argument, "8000"])


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            preflight.check_port("127.0.0.1", port)
    preflight.check_port("127.0.0.1", port)
    preflight.check_port("::", port)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = replace(make_settings(tmp_path), bucket=f"local:{tmp_path / 'file'}", model=str(tmp_path))
    found = [str(problem) for problem in preflight.problems(settings, ["-tp", "2", "--port", "1"])]
    assert [sentence.split()[0] for sentence in found] == ["--tensor-parallel-size", "--port:", "BUCKET:", "MODEL"]


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    settings = replace(make_settings(tmp_path), model=str(tmp_path))
    with pytest.raises(SettingError, match="has a quantization_config: .*serve an unquantised model"):
        preflight.check_model(settings)
    (tmp_path / "config.json").write_text("{}")
    preflight.check_model(settings)


class Hub:
    """In the place of `cached_file`: refuses, as transformers tells it."""

    def __init__(self, cause: Exception) -> None:
        self._cause = cause

    def __call__(self, *_: str, **__: str | None) -> str:
        raise OSError("the Hub\nsays no") from self._cause


def of_status(code: int) -> HfHubHTTPError:
    return HfHubHTTPError("refused", response=httpx2.Response(code, request=httpx2.Request("GET", "http://hub")))


def refusal_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception) -> SettingError:
    monkeypatch.setattr(preflight, "cached_file", Hub(cause))
    with pytest.raises(SettingError) as refused:
        preflight.check_model(replace(make_settings(tmp_path), model="someone/model"))
    return refused.value


@pytest.mark.parametrize("cause", [of_status(429), of_status(503), LocalEntryNotFoundError("no network")])
def test_nothing_is_said_against_a_model_while_the_hub_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    monkeypatch.setattr(preflight, "is_offline_mode", lambda: False)
    told = refusal_of_a_model(tmp_path, monkeypatch, cause)
    assert str(told) == "MODEL 'someone/model' cannot be had now: the Hub says no"
    assert told.may_pass


@pytest.mark.parametrize("cause", [of_status(403), of_status(404), ValueError("no model id")])
def test_a_model_that_the_hub_does_not_give_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    told = refusal_of_a_model(tmp_path, monkeypatch, cause)
    assert str(told) == "MODEL 'someone/model' cannot be had: the Hub says no"
    assert not told.may_pass


def test_offline_a_model_that_is_not_here_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "is_offline_mode", lambda: True)
    assert not refusal_of_a_model(tmp_path, monkeypatch, LocalEntryNotFoundError("not in the cache")).may_pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """One that has the bucket user/weights with a run in it, for whoever has the token."""
    with stand_in(token=TOKEN, bucket=BUCKET) as running:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        for name, value in running.environment(tmp_path / "xet").items():
            monkeypatch.setenv(name, value)
        abort_xet_session()  # the next one reads the environment
        open_bucket(BUCKET, TOKEN).write("run/run.json", b"{}")
        yield running
    abort_xet_session()


def refusal_of_the_bucket(tmp_path: Path, bucket: str = BUCKET, token: str | None = TOKEN) -> SettingError:
    with pytest.raises(SettingError) as refused:
        preflight.check_bucket(replace(make_settings(tmp_path), bucket=bucket, hf_token=token))
    assert refused.value.places == (Place.BUCKET, Place.TOKENS, Place.SETTINGS)
    return refused.value


def test_a_bucket_that_can_be_read_is_fine_whatever_runs_it_has(hub: StandIn, tmp_path: Path) -> None:
    settings = replace(make_settings(tmp_path), bucket=BUCKET, hf_token=TOKEN)
    preflight.check_bucket(settings)
    assert hub.count("resolve") > 0, "the run was not read"
    hub.empty()
    preflight.check_bucket(settings)


@pytest.mark.parametrize("token", [None, "hf_of_somebody_else"])
def test_a_token_that_is_missing_or_wrong_is_told(hub: StandIn, tmp_path: Path, token: str | None) -> None:
    told = refusal_of_the_bucket(tmp_path, token=token)
    assert "HTTP 401: the token is missing or not valid; set HF_TOKEN" in str(told)
    assert "hf_" not in str(told)
    assert not told.may_pass


def test_a_bucket_that_is_not_there_is_told(hub: StandIn, tmp_path: Path) -> None:
    told = refusal_of_the_bucket(tmp_path, bucket="user/other")
    assert "user/other" in str(told)
    assert "there is no such bucket, or the token may not see it" in str(told)


def test_a_token_that_may_list_the_bucket_but_not_read_it_is_told(hub: StandIn, tmp_path: Path) -> None:
    hub.inject("status", "read-token", status=403, times=0)
    told = refusal_of_the_bucket(tmp_path)
    assert "HTTP 403: the token may not do this; it needs access to this bucket" in str(told)


def test_a_hub_that_does_not_answer_now_may_answer_later(hub: StandIn, tmp_path: Path) -> None:
    hub.inject("status", "tree", status=503, times=0)
    assert refusal_of_the_bucket(tmp_path).may_pass


def test_a_gpu_that_cannot_be_used_is_told_with_the_reason() -> None:
    preflight.check_gpu("pass")
    with pytest.raises(SettingError, match=r"none can be used here \(RuntimeError: the driver is too old\): choose"):
        preflight.check_gpu("raise RuntimeError('the driver is too old')")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_gpu_is_looked_for_by_starting_cuda() -> None:
    with pytest.raises(SettingError, match="vLLM needs a GPU, and none can be used here"):
        preflight.check_gpu()
