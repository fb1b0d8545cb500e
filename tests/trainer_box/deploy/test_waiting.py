"""Waiting for a Space tells how far it is, and ends when waiting longer is of no use."""

import json
import time

import pytest

from shared import health
from shared.errors import SyncError
from tests.hub import StandIn
from trainer_box.deploy import waiting
from trainer_box.deploy.apply import Applied
from trainer_box.deploy.hub import Hub
from trainer_box.deploy.plan import deployment
from trainer_box.deploy.waiting import Waiting

SPACE = deployment("user", "m", "l4x1").vllm
DEADLINE_S = 20.0
UNCHANGED = Applied("", False, None)
KEY = "the-key-of-vllm"


def wait(hub: StandIn, told: list[str], deadline_s: float = DEADLINE_S, applied: Applied = UNCHANGED) -> str:
    hub.change(SPACE.repo_id, files={"Dockerfile": ""}, secrets={"VLLM_API_KEY": {"value": KEY}})
    keys = {"VLLM_API_KEY": KEY}
    return Waiting(Hub("hf_x"), "hf_x", deadline_s, told.append, keys).until_healthy(SPACE, applied)


def say(hub: StandIn, stage: str, times: int, problem: str = "", commit: str | None = None) -> None:
    answer = json.dumps({"stage": stage, "errorMessage": problem, "sha": commit})
    hub.inject("status", "settings", path="runtime", status=200, body=answer, times=times)


def failure(hub: StandIn, told: list[str], deadline_s: float = DEADLINE_S, applied: Applied = UNCHANGED) -> str:
    with pytest.raises(SyncError) as caught:
        wait(hub, told, deadline_s, applied)
    return str(caught.value)


def test_each_stage_is_told_once_and_the_address_at_the_end(hub: StandIn) -> None:
    say(hub, "BUILDING", 3)
    say(hub, "APP_STARTING", 2)
    told: list[str] = []
    address = wait(hub, told)
    assert address == f"{hub.url}/app/{SPACE.repo_id}"
    assert told == [
        f"{SPACE.repo_id}: BUILDING, /health: HTTP 200",
        f"{SPACE.repo_id}: APP_STARTING, /health: HTTP 200",
        f"{SPACE.repo_id}: healthy at {address}",
    ]


def test_the_container_of_before_an_update_does_not_count(hub: StandIn) -> None:
    say(hub, "RUNNING_BUILDING", 2)
    told: list[str] = []
    wait(hub, told)
    assert told[0] == f"{SPACE.repo_id}: RUNNING_BUILDING, /health: HTTP 200"


def test_a_space_that_runs_but_is_not_healthy_is_given_up_after_the_deadline(hub: StandIn) -> None:
    hub.change(SPACE.repo_id, paused=True)
    say(hub, "RUNNING", 0)
    sentence = failure(hub, [], 0.05)
    assert f"{SPACE.repo_id} is not healthy after 0 s (RUNNING, /health: HTTP 503)" in sentence
    assert f"hf spaces logs {SPACE.repo_id}" in sentence


def test_a_build_that_failed_ends_the_wait_with_where_to_look(hub: StandIn) -> None:
    say(hub, "BUILD_ERROR", 0, "exit code 1")
    told: list[str] = []
    assert failure(hub, told) == (
        f"{SPACE.repo_id} is in stage BUILD_ERROR (exit code 1); hf spaces logs {SPACE.repo_id} --build tells why, "
        f"and hf spaces restart {SPACE.repo_id} starts it again"
    )
    assert len(told) == 1


def test_a_bad_stage_from_before_the_change_is_not_believed(hub: StandIn) -> None:
    say(hub, "NO_APP_FILE", 2)
    assert wait(hub, [])


def test_a_space_that_crashed_is_restarted_once(hub: StandIn) -> None:
    say(hub, "RUNTIME_ERROR", 0)
    told: list[str] = []
    assert f"hf spaces logs {SPACE.repo_id} tells why" in failure(hub, told)
    assert hub.described()["spaces"][SPACE.repo_id]["restarts"] == 1


def test_a_crash_loop_is_restarted_once_and_then_told_with_where_to_look(hub: StandIn) -> None:
    for _ in range(9):
        say(hub, "RUNTIME_ERROR", 2, "Exit code: 1")
        say(hub, "APP_STARTING", 2)
    told: list[str] = []
    assert f"RUNTIME_ERROR (Exit code: 1); hf spaces logs {SPACE.repo_id} tells why" in failure(hub, told)
    assert hub.described()["spaces"][SPACE.repo_id]["restarts"] == 1
    assert len([line for line in told if "restarting it" in line]) == 1


def test_a_machine_that_is_not_to_be_had_is_asked_for_once_more_and_ends_the_wait(hub: StandIn) -> None:
    say(hub, "RUNTIME_ERROR", 0, "Scheduling failure: not enough hardware capacity")
    sentence = failure(hub, [])
    assert sentence.startswith(f"{SPACE.repo_id} cannot start on l4x1: no such machine is free")
    assert hub.described()["spaces"][SPACE.repo_id]["restarts"] == 1


@pytest.mark.parametrize(
    "problem",
    [
        "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has a total capacity of 21.96 GiB",
        "Exit code: 1. Reason: the queue is above its capacity",
        "Exit code: 1. Reason: Scheduling failure: no block is free",
    ],
)
def test_a_program_that_speaks_of_capacity_is_a_program_that_crashed(hub: StandIn, problem: str) -> None:
    say(hub, "RUNTIME_ERROR", 0, problem)
    sentence = failure(hub, [])
    assert f"is in stage RUNTIME_ERROR ({problem})" in sentence
    assert "no such machine is free" not in sentence


def test_a_capacity_that_is_told_of_a_space_that_starts_ends_nothing(hub: StandIn) -> None:
    say(hub, "APP_STARTING", 3, "Scheduling failure: not enough hardware capacity")
    assert wait(hub, [])


def test_what_runs_is_believed_only_when_it_is_the_commit_that_was_pushed(hub: StandIn) -> None:
    say(hub, "RUNNING", 2, commit="0ld" * 9)
    say(hub, "RUNNING_BUILDING", 1, commit="0ld" * 9)
    say(hub, "RUNNING", 2, commit="0ld" * 9)
    say(hub, "RUNNING", 1, commit="new" * 9)
    told: list[str] = []
    wait(hub, told, applied=Applied("new" * 9, True, time.monotonic()))
    before = "(commit 0ld0ld0l, not yet newnewne)"
    assert told[0] == f"{SPACE.repo_id}: RUNNING {before}, /health: HTTP 200"
    assert [line.split(":")[1].split(" ")[1].strip(",") for line in told] == [
        "RUNNING",
        "RUNNING_BUILDING",
        "RUNNING",
        "healthy",
    ]


def test_another_commit_that_goes_on_running_is_not_called_healthy(hub: StandIn) -> None:
    say(hub, "RUNNING", 0, commit="0ld" * 9)
    sentence = failure(hub, [], 0.2, Applied("new" * 9, True, time.monotonic() - 3600))
    assert "is not healthy after 0 s (RUNNING (commit 0ld0ld0l, not yet newnewne), /health: HTTP 200)" in sentence


@pytest.mark.parametrize("is_new", [True, False], ids=["commit", "settings"])
def test_where_no_commit_is_told_a_change_has_to_have_shown_or_be_some_time_ago(
    hub: StandIn, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    monkeypatch.setattr(waiting, "_GRACE_S", 3600.0)
    applied = Applied("new" * 9, is_new, time.monotonic())
    say(hub, "RUNNING", 3)
    say(hub, "APP_STARTING", 1)
    say(hub, "RUNNING", 1)
    told: list[str] = []
    wait(hub, told, applied=applied)
    assert told[0] == f"{SPACE.repo_id}: RUNNING (as before the change), /health: HTTP 200"
    assert len(told) == 3
    say(hub, "RUNNING", 1)
    assert wait(hub, [], applied=Applied("new" * 9, is_new, time.monotonic() - 3601))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("<html>hello", "not an answer of this project"),
        ("[]", "not an answer of this project"),
        ('{"status": "ok"}', "not an answer of this project"),
        ('{"project": "0.0.1"}', "release 0.0.1, not 0.1.0"),
        ('{"project": null}', "release None, not 0.1.0"),
    ],
)
def test_a_space_that_is_not_of_this_release_is_not_called_healthy(hub: StandIn, answer: str, told: str) -> None:
    hub.inject("status", "app", path="weights/status", status=200, body=answer, times=0)
    assert f"(RUNNING, /health: HTTP 200, /weights/status: {told})" in failure(hub, [], 0.05)


def test_a_key_that_the_space_does_not_take_yet_is_waited_for(hub: StandIn) -> None:
    hub.inject("status", "app", path="weights/status", status=401, times=2)
    told: list[str] = []
    assert wait(hub, told)
    assert told[0] == f"{SPACE.repo_id}: RUNNING, /health: HTTP 200, /weights/status: HTTP 401"


def test_a_space_without_an_address_is_a_sentence(hub: StandIn) -> None:
    hub.inject("status", "space", status=200, body=json.dumps({"id": SPACE.repo_id}))
    assert f"the Hub tells no address of {SPACE.repo_id}" in failure(hub, [])


def test_a_page_that_is_not_there_names_the_token_of_a_private_space(hub: StandIn) -> None:
    hub.inject("status", "app", path="health", status=404, body="<html>", times=0)
    assert "HTTP 404; check the address, and HF_TOKEN if it is that of a private Space" in failure(hub, [], 0.05)


def test_a_status_that_never_ends_is_waited_for_no_longer_than_others(
    hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ANSWER_S", 0.3)
    hub.inject("slow", "app", path="weights/status", rate=10.0, times=0)
    assert "/weights/status: no answer within 0 s" in failure(hub, [], 0.05)
