"""The trainer's view of a Space, against a scripted one: who it says it is, what it waits for, what it tells."""

from collections.abc import Callable, Iterator

import pytest

from shared.errors import SyncError
from shared.types import DataFile, Manifest, now
from tests.trainer_box.fake_space import CUT_OFF, TIMES, Answer, FakeSpace, fake_space
from trainer_box.replica import Acknowledgement, Replica, vllm_headers

KEY = "a-very-secret-key"
BUCKET = "local:/somewhere"


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("trainer_box.replica._POLL_S", 0.01)
    with fake_space("tiny", key=KEY) as server:
        yield server


SPACE = "https://user-vllm.hf.space"


def manifest(version: int = 3) -> Manifest:
    data = DataFile(f"run/anchors/step_{version:06d}.safetensors", 10, "0" * 32)
    return Manifest("run", version, "anchor", (data,), "0" * 16, 5, 5, 1, now())


def test_headers_come_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert vllm_headers(SPACE) == {}
    monkeypatch.setenv("VLLM_API_KEY", "key")
    assert vllm_headers(SPACE) == {"Authorization": "Bearer key"}
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    assert vllm_headers(SPACE) == {"Authorization": "Bearer key", "X-HF-Authorization": "Bearer hf_token"}


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host", "http://host:port"])
def test_what_is_no_address_is_one_sentence(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(SyncError, match="address.*--vllm-url"):
        Replica(url)


def test_an_update_is_announced_as_the_space_expects_it_and_acknowledged_with_its_times(space: FakeSpace) -> None:
    assert Replica(space.url + "/").update(BUCKET, manifest(), 5) == Acknowledgement(3, 1200.0, 50.0, 20.0)
    (message,) = space.updates
    assert message == {"repo_id": BUCKET, "filename": manifest().path, "version": 3, "run_id": "run"}
    assert space.headers[-1]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "first",
    [Answer(202), Answer(CUT_OFF), Answer(502, "<html>Bad gateway</html>"), Answer(503), Answer(504)],
)
def test_an_answer_that_is_late_or_lost_is_asked_for_again(space: FakeSpace, first: Answer) -> None:
    space.script = [first, Answer(200, {"version": 3, "kind": "delta", **TIMES})]
    assert Replica(space.url).update(BUCKET, manifest(), 5).version == 3
    assert len(space.updates) == 2
    assert space.updates[0] == space.updates[1]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500])
def test_a_refusal_is_told_at_once_with_status_and_body(space: FakeSpace, status: int) -> None:
    space.script = [Answer(status, {"error": "no path", "need": "anchor"})]
    with pytest.raises(SyncError) as caught:
        Replica(space.url).update(BUCKET, manifest(), 60)
    sentence = str(caught.value)
    assert f"refused version 3 of run 'run': HTTP {status}" in sentence
    assert '"need": "anchor"' in sentence
    assert KEY not in sentence
    assert len(space.updates) == 1


def test_a_page_in_place_of_an_answer_is_told_in_one_line(space: FakeSpace) -> None:
    space.script = [Answer(404, "<html>\n\n<b>Not   found</b>\n</html>")]
    with pytest.raises(SyncError) as caught:
        Replica(space.url).update(BUCKET, manifest(), 60)
    assert str(caught.value).endswith("HTTP 404 <html> <b>Not found</b> </html>")


def test_an_acknowledgement_that_is_no_json_is_one_sentence(space: FakeSpace) -> None:
    space.script = [Answer(200, "<html>hello</html>")]
    with pytest.raises(SyncError, match="/weights/update .* did not answer with JSON"):
        Replica(space.url).update(BUCKET, manifest(), 60)


def test_a_version_that_is_not_live_in_time_is_told_with_the_last_answer(space: FakeSpace) -> None:
    space.script = [Answer(202, {"state": "staging"})] * 1000
    with pytest.raises(SyncError) as caught:
        Replica(space.url).update(BUCKET, manifest(), 0.05)
    assert "does not serve version 3 after 0 s: HTTP 202" in str(caught.value)
    assert "staging" in str(caught.value)
    assert len(space.updates) > 1


def test_a_space_out_of_reach_is_told_after_the_deadline_without_the_key(
    space: FakeSpace, free_port: Callable[[], int]
) -> None:
    replica = Replica(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SyncError, match="does not serve version 3 .* ConnectError") as caught:
        replica.update(BUCKET, manifest(), 0.05)
    with pytest.raises(SyncError, match="not ready after 0 s .*ConnectError.*is it running") as unready:
        replica.wait_until_healthy(0.05)
    with pytest.raises(SyncError, match="cannot be reached: ConnectError") as unreachable:
        replica.status()
    assert KEY not in f"{caught.value} {unready.value} {unreachable.value}"


def test_a_space_that_starts_is_waited_for(space: FakeSpace) -> None:
    answers = iter([Answer(503), Answer(503), Answer(200)])

    class Starting(dict[str, Answer]):
        def __contains__(self, path: object) -> bool:
            return path == "/health"

        def __getitem__(self, path: str) -> Answer:
            return next(answers)

    space.fixed = Starting()
    Replica(space.url).wait_until_healthy(5)
    assert next(answers, None) is None


def test_models_and_status_are_read_with_the_key(space: FakeSpace) -> None:
    assert Replica(space.url).served_models() == ["tiny"]
    assert Replica(space.url).status()["version"] == 0
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in space.headers)
