"""The trainer's view of a Space, against a scripted one: who it says it is, what it waits for, what it tells."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shared.errors import SyncError
from shared.types import DataFile, Manifest, now
from tests.trainer_box.fake_space import CUT_OFF, KEY, TIMES, Answer, FakeSpace, fake_space
from trainer_box.replica import Acknowledgement, NeedsAnchorError, Pending, Replica

BUCKET = "local:/somewhere"


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpace]:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("shared.health.POLL_S", 0.01)
    with fake_space("tiny", key=KEY) as server:
        yield server


def manifest(version: int = 3) -> Manifest:
    data = DataFile(f"run/anchors/step_{version:06d}.safetensors", 10, "0" * 32)
    return Manifest("run", version, "anchor", (data,), "0" * 16, 5, 5, 1, now())


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host", "http://host:port"])
def test_what_is_no_address_is_one_sentence(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(SyncError, match="address.*--vllm-url"):
        Replica(url)


def served(version: int, **changes: Any) -> dict[str, Any]:
    """The status of a Space that serves a version of the run."""
    last_sync = {"version": version, **TIMES}
    known = {"run_id": "run", "version": version, "fingerprint": "0" * 16, "state": "serving", "last_sync": last_sync}
    return {**known, **changes}


def test_an_update_is_announced_as_the_space_expects_it_and_acknowledged_with_its_times(space: FakeSpace) -> None:
    assert Replica(space.url + "/").update(BUCKET, manifest()) == Acknowledgement(3, 1200.0, 50.0, 20.0)
    (message,) = space.updates
    assert message == {"repo_id": BUCKET, "filename": manifest().path, "version": 3, "run_id": "run"}
    assert space.headers[-1]["Authorization"] == f"Bearer {KEY}"


def test_a_later_version_that_is_live_has_times_of_its_own(space: FakeSpace) -> None:
    space.script = [Answer(200, {"version": 5, "fingerprint": "5" * 16, **TIMES})]
    assert Replica(space.url).update(BUCKET, manifest()) == Acknowledgement(3, 0, 0, 0)


def test_a_version_that_is_under_way_is_no_problem(space: FakeSpace) -> None:
    space.script = [Answer(202, {"state": "staging"})]
    assert Replica(space.url).update(BUCKET, manifest()) == Pending('HTTP 202 {"state": "staging"}', is_under_way=True)


def test_a_space_that_is_not_there_for_a_moment_is_told_with_its_address(space: FakeSpace) -> None:
    """As a proxy answers while a Space is built."""
    space.script = [Answer(404, "<html>Not Found</html>")]
    assert Replica(space.url).update(BUCKET, manifest()) == Pending(
        f"HTTP 404 <html>Not Found</html>; check that {space.url} is the address of the vLLM Space, and HF_TOKEN if "
        "that is a private one"
    )


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_an_answer_that_may_pass_is_told_and_left_to_the_caller(space: FakeSpace, status: int) -> None:
    space.script = [Answer(status, "<html>\n\n<b>Bad   gateway</b>\n</html>")]
    assert Replica(space.url).update(BUCKET, manifest()) == Pending(f"HTTP {status} <html> <b>Bad gateway</b> </html>")
    assert len(space.updates) == 1


WHOLE = {"version": 3, "fingerprint": "0" * 16, **TIMES}
BROKEN: list[Any] = [
    *("<html>starting</html>", "{broken", "", "[" * 100_000, {}, [3], None),
    *({**WHOLE, "version": odd} for odd in (2, None, True, 3.0, "3", -3, 10**30)),
    *({**WHOLE, "fingerprint": odd} for odd in (None, 0, "0" * 15, "O" * 16)),
    *({**WHOLE, "pause_ms": odd} for odd in ("soon", [1], None, True, -1, 10**400, math.nan, math.inf)),
    {**WHOLE, "run_id": "another"},
]


@pytest.mark.parametrize("body", BROKEN)
def test_an_answer_that_is_not_whole_is_no_acknowledgement(space: FakeSpace, body: Any) -> None:
    space.script = [Answer(200, body)]
    answer = Replica(space.url).update(BUCKET, manifest())
    assert isinstance(answer, Pending)
    assert answer.reason.startswith("HTTP 200 ")


@pytest.mark.parametrize("body", [{"version": 3, "kind": "delta"}, {**WHOLE, "pause_ms": "soon"}, "<html>"])
def test_the_status_is_asked_when_an_answer_does_not_tell_what_is_live(space: FakeSpace, body: Any) -> None:
    space.script, space.status = [Answer(200, body)], served(3)
    assert Replica(space.url).update(BUCKET, manifest()) == Acknowledgement(3, 1200.0, 50.0, 20.0)


def test_a_lost_answer_is_looked_up_in_the_status(space: FakeSpace) -> None:
    space.script = [Answer(CUT_OFF)]
    space.status = served(3)
    assert Replica(space.url).update(BUCKET, manifest()) == Acknowledgement(3, 1200.0, 50.0, 20.0)
    space.script = [Answer(CUT_OFF)]
    space.status = served(4)
    assert Replica(space.url).update(BUCKET, manifest()) == Acknowledgement(3, 0, 0, 0)


@pytest.mark.parametrize(
    "status",
    [
        served(2),
        served(3, run_id="another"),
        served(3, state="catching_up"),
        served(3, state="dirty"),
        served(3, fingerprint=None),
        served(3, last_sync={"version": 3, "pause_ms": "soon"}),
        served(10**30),
        {"run_id": None, "version": None, "fingerprint": None, "state": "starting", "last_sync": None},
        "<html>Bad gateway</html>",
    ],
)
def test_a_lost_answer_stays_unknown_when_the_status_does_not_say_so(space: FakeSpace, status: Any) -> None:
    space.script = [Answer(CUT_OFF)]
    space.fixed["/weights/status"] = Answer(200, status)
    answer = Replica(space.url).update(BUCKET, manifest())
    assert isinstance(answer, Pending)
    assert answer.reason.startswith("RemoteProtocolError: ")


def test_a_lost_answer_stays_unknown_when_the_status_is_lost_too(space: FakeSpace) -> None:
    space.script = [Answer(CUT_OFF)]
    space.fixed["/weights/status"] = Answer(CUT_OFF)
    assert isinstance(Replica(space.url).update(BUCKET, manifest()), Pending)


@pytest.mark.parametrize(
    "answer", [Answer(CUT_OFF), Answer(200, {"version": 3}), Answer(200, {**WHOLE, "fingerprint": "1" * 16})]
)
def test_a_space_that_serves_the_version_with_other_weights_is_refused(space: FakeSpace, answer: Answer) -> None:
    space.script, space.status = [answer], served(3, fingerprint="1" * 16)
    with pytest.raises(SyncError) as caught:
        Replica(space.url).update(BUCKET, manifest())
    assert str(caught.value) == (
        f"vLLM at {space.url} serves version 3 of run 'run' with fingerprint {'1' * 16}, published was {'0' * 16}: "
        "the run was begun anew, or its files were changed; restart the Space, or choose another --run-id"
    )
    assert not isinstance(caught.value, NeedsAnchorError)


def test_other_weights_do_not_matter_once_a_later_version_of_the_run_is_live(space: FakeSpace) -> None:
    space.script, space.status = [Answer(200, {"version": 4})], served(4, fingerprint="1" * 16)
    assert Replica(space.url).update(BUCKET, manifest()) == Acknowledgement(3, 0, 0, 0)


def test_a_space_that_needs_an_anchor_says_so(space: FakeSpace) -> None:
    space.script = [Answer(409, {"error": "no path", "need": "anchor"})]
    with pytest.raises(NeedsAnchorError, match="refused version 3 of run 'run': HTTP 409 .*no path"):
        Replica(space.url).update(BUCKET, manifest())


@pytest.mark.parametrize("status", [400, 401, 403, 422])
def test_a_refusal_is_told_with_status_and_body(space: FakeSpace, status: int) -> None:
    space.script = [Answer(status, {"error": "older run"})]
    with pytest.raises(SyncError) as caught:
        Replica(space.url).update(BUCKET, manifest())
    sentence = str(caught.value)
    assert sentence.endswith(f'refused version 3 of run \'run\': HTTP {status} {{"error": "older run"}}')
    assert not isinstance(caught.value, NeedsAnchorError)
    assert KEY not in sentence
    assert len(space.updates) == 1


def test_a_space_out_of_reach_is_told_without_the_key(space: FakeSpace, free_port: Callable[[], int]) -> None:
    replica, told = Replica(f"http://127.0.0.1:{free_port()}"), list[str]()
    answer = replica.update(BUCKET, manifest())
    assert isinstance(answer, Pending)
    assert answer.reason.startswith("ConnectError: ")
    with pytest.raises(SyncError, match="not ready after 0 s .*ConnectError.*is it running") as unready:
        replica.wait_until_healthy(0.05, told.append)
    with pytest.raises(SyncError, match="cannot be reached: ConnectError") as unreachable:
        replica.status()
    assert KEY not in f"{answer} {unready.value} {unreachable.value} {told}"


@pytest.mark.parametrize("body", ["<html>hello</html>", [1]])
def test_a_status_that_is_no_json_object_is_one_sentence(space: FakeSpace, body: Any) -> None:
    space.fixed["/weights/status"] = Answer(200, body)
    with pytest.raises(SyncError, match="/weights/status .* did not answer with JSON"):
        Replica(space.url).status()


def test_a_space_that_starts_is_waited_for(space: FakeSpace) -> None:
    answers = iter([Answer(404), Answer(503), Answer(404), Answer(200)])

    class Starting(dict[str, Answer]):
        def __contains__(self, path: object) -> bool:
            return path == "/health"

        def __getitem__(self, path: str) -> Answer:
            return next(answers)

    space.fixed = Starting()
    told: list[str] = []
    Replica(space.url).wait_until_healthy(5, told.append)
    assert next(answers, None) is None
    assert [line.split("s: ")[1][:8] for line in told] == ["HTTP 404", "HTTP 503", "HTTP 404"]
    assert told[1] == f"waiting for vLLM at {space.url}, 0 of at most 5 s: HTTP 503"


@pytest.mark.parametrize("body", [{"models": []}, {"data": {}}, {"data": ["tiny"]}, {"data": [{"id": 3}]}])
def test_models_that_are_not_told_as_they_should_be_are_one_sentence(space: FakeSpace, body: Any) -> None:
    space.fixed["/v1/models"] = Answer(200, body)
    with pytest.raises(SyncError, match="^/v1/models: "):
        Replica(space.url).served_models()


def test_the_longest_row_is_that_of_the_model(space: FakeSpace) -> None:
    space.fixed["/v1/models"] = Answer(200, {"data": [{"id": "other", "max_model_len": 9}, {"id": "tiny"}]})
    with pytest.raises(SyncError, match="^/v1/models: .*max_model_len"):
        Replica(space.url).longest_row("tiny")
    assert Replica(space.url).longest_row("other") == 9


def test_models_and_status_are_read_with_the_key(space: FakeSpace) -> None:
    assert Replica(space.url).served_models() == ["tiny"]
    assert Replica(space.url).status()["version"] == 0
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in space.headers)
