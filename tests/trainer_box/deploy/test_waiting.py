"""Waiting for a Space tells how far it is, and ends when waiting longer is of no use."""

import json

import pytest

from shared.errors import SyncError
from tests.hub import StandIn
from trainer_box.deploy.hub import Hub
from trainer_box.deploy.plan import deployment
from trainer_box.deploy.waiting import Waiting

SPACE = deployment("user", "m", "l4x1").vllm
DEADLINE_S = 20.0


def wait(hub: StandIn, told: list[str], deadline_s: float = DEADLINE_S) -> str:
    hub.change(SPACE.repo_id, files={"Dockerfile": ""})
    return Waiting(Hub("hf_x"), "hf_x", deadline_s, told.append).until_healthy(SPACE)


def say(hub: StandIn, stage: str, times: int, problem: str = "") -> None:
    answer = json.dumps({"stage": stage, "errorMessage": problem})
    hub.inject("status", "settings", path="runtime", status=200, body=answer, times=times)


def failure(hub: StandIn, told: list[str], deadline_s: float = DEADLINE_S) -> str:
    with pytest.raises(SyncError) as caught:
        wait(hub, told, deadline_s)
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


def test_a_machine_that_is_not_to_be_had_ends_the_wait_at_once(hub: StandIn) -> None:
    say(hub, "RUNTIME_ERROR", 0, "Scheduling failure: not enough hardware capacity")
    sentence = failure(hub, [])
    assert sentence.startswith(f"{SPACE.repo_id} cannot start on l4x1: no such machine is free")
    assert hub.count("settings") == 1


def test_a_space_without_an_address_is_a_sentence(hub: StandIn) -> None:
    hub.inject("status", "space", status=200, body=json.dumps({"id": SPACE.repo_id}))
    assert f"the Hub tells no address of {SPACE.repo_id}" in failure(hub, [])
