"""Wrong settings are told before a model is loaded, each in one sentence that says what to set."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared import health
from shared.bucket import open_bucket
from shared.errors import SyncError
from shared.identity import VERSION
from shared.types import Json
from tests.http_servers import LoopbackServer, QuietHandler, listening
from tests.shared.fake_bucket import MemoryBucket
from tests.space_env.server import running
from tests.trainer_box.fake_space import Answer, FakeSpace, fake_space
from trainer_box import preflight
from trainer_box.preflight import Expected
from trainer_box.replica import Replica

EXPECTED = Expected("tiny", "local:bucket", "run", in_flight=8)
PAGE = "<html><body>404 Sorry, we can't find the page</body></html>"


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    monkeypatch.setenv("VLLM_API_KEY", "right")
    monkeypatch.setattr("shared.health.POLL_S", 0.01)
    with fake_space("Qwen/Qwen3-1.7B", "tiny", key="right") as server:
        yield server


def refused(space: FakeSpace, model: str = "tiny", deadline_s: float = 0.05) -> str:
    with pytest.raises(SyncError) as caught:
        preflight.check_replica(Replica(space.url), replace(EXPECTED, model=model), deadline_s, lambda line: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_space_that_is_as_it_should_be_passes(space: FakeSpace) -> None:
    status = preflight.check_replica(Replica(space.url), EXPECTED, 1, lambda line: None)
    assert status["project"] == VERSION


def test_several_visible_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(SyncError, match="2 GPUs are visible.*CUDA_VISIBLE_DEVICES"):
        preflight.check_one_gpu()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    preflight.check_one_gpu()


@pytest.mark.parametrize("size", ["2", "8", "0", "several"])
def test_a_launcher_of_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(SyncError, match=f"WORLD_SIZE is {size}.*one process"):
        preflight.check_one_process()


def test_an_empty_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "")
    with pytest.raises(SyncError, match="WORLD_SIZE is empty"):
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
        f"vLLM at {space.url} is not ready after 0 s (HTTP 404; check the address, and HF_TOKEN if it is that of a "
        "private Space); is it running?"
    )


@pytest.mark.parametrize("path", ["/v1/models", "/weights/status"])
def test_a_server_that_is_no_vllm_space_is_told_as_such(space: FakeSpace, path: str) -> None:
    space.fixed[path] = Answer(404, PAGE)
    assert f"{path} of vLLM at {space.url} answered HTTP 404; is this a vLLM Space?" in refused(space)
    space.fixed[path] = Answer(200, PAGE)
    assert f"{path} of vLLM at {space.url} did not answer with JSON" in refused(space)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"project": "0.0.9"}, f"is release 0.0.9 of this project, and this trainer is {VERSION}; bring both to one"),
        ({"project": None}, "is release unknown of this project"),
        ({"bucket": "other/bucket"}, "follows bucket other/bucket, not local:bucket; set BUCKET there, or --bucket"),
        ({"pinned_run": "older"}, "stays with run 'older', not 'run'; unset RUN_ID there, or set --run-id"),
        ({"dtype": "float16"}, "computes in float16, which cannot hold every bf16 value"),
    ],
)
def test_a_space_that_was_told_something_else_is_refused_with_both_values(
    space: FakeSpace, told: dict[str, str | None], sentence: str
) -> None:
    space.status.update(told)
    assert sentence in refused(space)


def test_a_space_that_stays_with_this_very_run_passes(space: FakeSpace) -> None:
    space.status["pinned_run"] = "run"
    assert preflight.check_replica(Replica(space.url), EXPECTED, 1, lambda line: None)


def test_a_space_that_is_not_set_up_says_itself_what_is_missing(space: FakeSpace) -> None:
    space.fixed["/health"] = Answer(503, {"error": "this Space is not set up yet: HF_TOKEN is not set"})
    assert "(HTTP 503 (this Space is not set up yet: HF_TOKEN is not set)); is it running?" in refused(space)


def test_a_bucket_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    preflight.check_bucket(open_bucket(f"local:{tmp_path}/bucket"))
    assert list((tmp_path / "bucket").iterdir()) == []


def test_a_bucket_that_takes_nothing_is_refused() -> None:
    with pytest.raises(SyncError, match="cannot write .preflight-"):
        preflight.check_bucket(MemoryBucket(fail_in=0))


def check_environment(url: str, in_flight: int = 8, deadline_s: float = 0.05) -> Json:
    return preflight.check_environment(url, in_flight, deadline_s, lambda line: None)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The real one, with a key and 16 seats."""
    monkeypatch.setenv("ENV_API_KEY", "env-key")
    with running(api_key="env-key", capacity=16) as url:
        yield url


def test_an_environment_with_enough_seats_passes(environment: str) -> None:
    assert check_environment(environment + "/", in_flight=16)["capacity"] == 16


def test_more_rollouts_than_seats_are_refused_with_both_numbers(environment: str) -> None:
    with pytest.raises(SyncError, match="has 16 seats, and 17 rollouts are made at once; lower --max-inflight-tasks"):
        check_environment(environment, in_flight=17)


def test_a_wrong_key_of_the_environment_is_told_without_it(environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV_API_KEY", "wrong-one")
    with pytest.raises(SyncError, match="refused the key .HTTP 401.; set ENV_API_KEY") as caught:
        check_environment(environment)
    assert "wrong-one" not in str(caught.value)


def test_an_environment_of_another_release_is_refused(environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "VERSION", "9.9.9")
    with pytest.raises(SyncError, match=f"is release {VERSION} of this project, and this trainer is 9.9.9"):
        check_environment(environment)


def test_an_environment_of_another_make_only_has_to_be_well(space: FakeSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV_API_KEY", "right")
    assert check_environment(space.url + "/") == {}


def test_an_environment_that_is_not_well_is_waited_for_and_then_told_with_its_status(space: FakeSpace) -> None:
    space.fixed["/health"] = Answer(503)
    with pytest.raises(SyncError, match="environment at .* is not ready after 0 s .HTTP 503.; is it running"):
        check_environment(space.url)


def test_an_environment_whose_status_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_S", 0.5)
    asked_enough = threading.Event()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.reply(200, headers={"Content-Length": "1" if self.path == "/status" else "0"})
            asked_enough.wait(20 if self.path == "/status" else 0)

    with listening(LoopbackServer(Handler)) as url:
        with pytest.raises(SyncError, match=f"environment at {url} gives no status within 0 s; is it overloaded"):
            check_environment(url)
        asked_enough.set()


def test_an_environment_out_of_reach_is_one_sentence(free_port: Callable[[], int]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(SyncError, match=f"environment at {url} is not ready after 0 s .ConnectError.*is it running"):
        check_environment(url)


@pytest.mark.parametrize("url", ["127.0.0.1:80", "http://", "ftp://host", "http://host:port"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(SyncError, match=f"environment at {url} cannot be reached: an address looks like"):
        check_environment(url, deadline_s=600)
