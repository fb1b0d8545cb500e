"""Wrong settings are told before a model is loaded, each in one sentence that says what to set."""

from collections.abc import Callable, Iterator

import pytest

from shared.errors import SyncError
from tests.trainer_box.fake_space import Answer, FakeSpace, fake_space
from trainer_box import preflight
from trainer_box.replica import Replica

PAGE = "<html><body>404 Sorry, we can't find the page</body></html>"


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    monkeypatch.setenv("VLLM_API_KEY", "right")
    monkeypatch.setattr("trainer_box.replica._POLL_S", 0.01)
    with fake_space("Qwen/Qwen3-1.7B", "tiny", key="right") as server:
        yield server


def refused(space: FakeSpace, model: str = "tiny", deadline_s: float = 0.05) -> str:
    with pytest.raises(SyncError) as caught:
        preflight.check_replica(Replica(space.url), model, deadline_s)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_space_that_is_as_it_should_be_passes(space: FakeSpace) -> None:
    preflight.check_replica(Replica(space.url), "tiny", 1)


def test_several_visible_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(SyncError, match="2 GPUs are visible.*CUDA_VISIBLE_DEVICES"):
        preflight.check_one_gpu()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    preflight.check_one_gpu()


@pytest.mark.parametrize("size", ["2", "8"])
def test_a_launcher_of_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(SyncError, match=f"WORLD_SIZE is {size}.*one process"):
        preflight.check_one_process()


def test_a_launcher_of_one_process_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    preflight.check_one_process()
    monkeypatch.delenv("WORLD_SIZE")
    preflight.check_one_process()


def test_another_served_name_is_told_with_both_names(space: FakeSpace) -> None:
    sentence = refused(space, "Qwen/Qwen3-0.6B")
    assert "serves Qwen/Qwen3-1.7B, tiny, not 'Qwen/Qwen3-0.6B'" in sentence
    assert "SERVED_MODEL_NAME" in sentence


@pytest.mark.parametrize("mode", ["raw_logprobs", None])
def test_log_probabilities_before_temperature_are_refused(space: FakeSpace, mode: str | None) -> None:
    space.status["logprobs_mode"] = mode
    assert f"runs with --logprobs-mode {mode}" in refused(space)
    assert "start it with --logprobs-mode processed_logprobs" in refused(space)


def test_a_wrong_key_is_told_without_the_key(space: FakeSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "wrong-one")
    sentence = refused(space)
    assert "refused the key (HTTP 401); set VLLM_API_KEY" in sentence
    assert "wrong-one" not in sentence


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_ends_the_wait_at_once(space: FakeSpace, status: int) -> None:
    space.fixed["/health"] = Answer(status, PAGE)
    told = f"HTTP {status} on /health; is this a vLLM Space, and if it is a private one, is HF_TOKEN set?"
    assert told in refused(space, deadline_s=600)


def test_the_page_that_hides_a_private_space_is_told_after_the_wait(space: FakeSpace) -> None:
    """A Space that is being built may hide behind the same page."""
    space.fixed["/health"] = Answer(404, PAGE)
    assert refused(space) == (
        f"vLLM at {space.url} is not ready after 0 s (HTTP 404; check that {space.url} is the address of the vLLM "
        "Space, and HF_TOKEN if that is a private one); is it running?"
    )


@pytest.mark.parametrize("path", ["/v1/models", "/weights/status"])
def test_a_server_that_is_no_vllm_space_is_told_as_such(space: FakeSpace, path: str) -> None:
    space.fixed[path] = Answer(404, PAGE)
    assert f"{path} of vLLM at {space.url} answered HTTP 404; is this a vLLM Space?" in refused(space)
    space.fixed[path] = Answer(200, PAGE)
    assert f"{path} of vLLM at {space.url} did not answer with JSON" in refused(space)


def test_an_environment_that_answers_passes(space: FakeSpace) -> None:
    preflight.check_environment(space.url + "/")


def test_an_environment_that_is_not_well_is_told_with_its_status(space: FakeSpace) -> None:
    space.fixed["/health"] = Answer(503)
    with pytest.raises(SyncError, match="answered HTTP 503 on /health"):
        preflight.check_environment(space.url)


def test_an_environment_out_of_reach_is_one_sentence(free_port: Callable[[], int]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for wrong in (url, "127.0.0.1:80", "http://host:port"):
        with pytest.raises(SyncError, match=f"environment at {wrong} cannot be reached.*is it running"):
            preflight.check_environment(wrong)
