import pytest

from tests.hub import StandIn
from trainer_box.deploy.pausing import pause

NAMES = ("user/async-rl-vllm", "user/async-rl-env")


@pytest.fixture
def running(hub: StandIn) -> StandIn:
    for name in NAMES:
        hub.change(name, files={"Dockerfile": ""})
    return hub


def stages(hub: StandIn) -> list[str]:
    return [hub.described()["spaces"][name]["stage"] for name in NAMES]


def test_spaces_are_paused_and_how_to_start_them_is_told(running: StandIn) -> None:
    told: list[str] = []
    pause(NAMES, "hf_x", told.append)
    assert stages(running) == ["PAUSED", "PAUSED"]
    assert told == [f"{name} is paused; hf spaces restart {name} starts it again" for name in NAMES]


def test_units_that_are_no_spaces_are_told(hub: StandIn) -> None:
    told: list[str] = []
    pause((), "hf_x", told.append)
    assert told == ["no Space is paused: the units tell of none (SPACE_ID)"]


def test_a_space_that_cannot_be_paused_is_told_and_the_next_one_is_paused(running: StandIn) -> None:
    running.inject("status", "settings", path="pause", status=401)
    told: list[str] = []
    pause(NAMES, "hf_x", told.append)
    assert stages(running) == ["RUNNING", "PAUSED"]
    assert told[0].startswith(f"{NAMES[0]} goes on and costs: cannot pause {NAMES[0]}: HTTP 401: ")
    assert told[0].endswith(f"pause it with hf spaces pause {NAMES[0]}")
