"""Spaces that are there already: what is changed in them, what is kept, and what is not touched."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub import StandIn
from tests.trainer_box.deploy.conftest import ENV, TOKEN, VLLM, space
from trainer_box.deploy.apply import described

pytestmark = pytest.mark.usefixtures("checkout")


def test_a_second_run_changes_nothing_and_restarts_nothing(hub: StandIn, run: Callable[..., str]) -> None:
    run()
    before = hub.described()
    hub.clear()
    printed = run()
    assert hub.described() == before
    assert (hub.count("commit"), hub.count("space-create"), hub.count("bucket-create")) == (0, 0, 0)
    assert f"{VLLM}: nothing changed" in printed


def test_a_run_after_changes_sets_what_changed_and_nothing_else(
    hub: StandIn, run: Callable[..., str], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    before = space(hub, VLLM), space(hub, ENV)
    (checkout / "space_vllm/serve.py").write_text("import shared.deltas")
    (checkout / "space_vllm/pyproject.toml").unlink()
    monkeypatch.setenv("SPACE_HF_TOKEN", "hf_anotherreader")
    run("--model", "Qwen/Qwen3-8B", "--sleep-time", "600")
    vllm = space(hub, VLLM)
    assert vllm["secrets"]["HF_TOKEN"] == {
        "key": "HF_TOKEN",
        "value": "hf_anotherreader",
        "description": described("hf_anotherreader"),
    }
    assert vllm["secrets"]["VLLM_API_KEY"] == before[0]["secrets"]["VLLM_API_KEY"]
    assert vllm["variables"]["MODEL"]["value"] == "Qwen/Qwen3-8B"
    assert (vllm["hardware"], vllm["sleep_s"]) == ("l40sx1", 600)
    assert vllm["files"].keys() == before[0]["files"].keys() - {"space_vllm/pyproject.toml"}
    assert vllm["files"]["space_vllm/serve.py"] != before[0]["files"]["space_vllm/serve.py"]
    assert (len(vllm["commits"]), vllm["restarts"] - before[0]["restarts"]) == (2, 4)
    assert space(hub, ENV) == before[1]


def test_what_a_secrets_description_says_tells_values_apart_and_not_what_they_are() -> None:
    assert described("one") != described("two")
    assert re.fullmatch(r"sha256 [0-9a-f]{8}; set by trainer_box\.deploy", described(TOKEN))


def test_a_space_of_another_kind_is_left_alone(hub: StandIn, run: Callable[..., str]) -> None:
    hub.change(VLLM, sdk="gradio", private=True)
    before = space(hub, VLLM)
    assert f"{VLLM} is there already as a Space of kind 'gradio', not docker" in run(code=1)
    assert space(hub, VLLM) == before


def test_a_space_that_somebody_made_public_is_told(hub: StandIn, run: Callable[..., str]) -> None:
    hub.change(ENV, private=False)
    assert f"{ENV}: it is public (hf repos settings {ENV} --type space --private changes that)" in run()


@pytest.mark.parametrize("private", [True, False])
def test_somebodys_own_space_of_that_name_is_left_alone(hub: StandIn, run: Callable[..., str], private: bool) -> None:
    hub.change(VLLM, private=private, files={"app.py": "aGk=", "Dockerfile": "aGk="}, commits=["mine"])
    before = space(hub, VLLM)
    assert f"{VLLM} is there already, and its files are not this project's; rename or delete it" in run(code=1)
    assert space(hub, VLLM) == before


def test_settings_of_ours_that_were_left_there_are_deleted_and_others_are_kept(
    hub: StandIn, run: Callable[..., str]
) -> None:
    run()
    values = {name: {"key": name, "value": "other/weights"} for name in ("BUCKET", "RUN_ID", "AUDIT_SECONDS", "MINE")}
    hub.change(VLLM, variables={**space(hub, VLLM)["variables"], **values})
    printed = run()
    assert set(space(hub, VLLM)["variables"]) == {"MODEL", "AUDIT_SECONDS", "MINE"}
    for name in ("BUCKET", "RUN_ID"):
        assert f"{VLLM}: variable {name} is deleted, as this deployment sets none" in printed


def test_a_template_loses_variables_and_hardware_that_it_should_not_have(
    hub: StandIn, run: Callable[..., str]
) -> None:
    name = "user/async-rl-vllm-template"
    values = {one: {"key": one, "value": "user/private-weights"} for one in ("BUCKET", "NOTES")}
    hub.change(name, private=False, hardware="a100-large", variables=values)
    printed = run("--template")
    assert (set(space(hub, name)["variables"]), space(hub, name)["hardware"]) == ({"MODEL"}, "cpu-basic")
    assert f"{name}: variable NOTES is deleted, as a template has none, and everybody could read it" in printed
    assert "private-weights" not in printed
    assert f"{name}: hardware cpu-basic, 0.00 USD per hour" in printed


def test_larger_hardware_is_kept_and_told_until_another_is_named(hub: StandIn, run: Callable[..., str]) -> None:
    run("--hardware", "a100-large")
    assert f"{VLLM}: it keeps its hardware a100-large, 2.50 USD per hour (--hardware names another)" in run()
    assert space(hub, VLLM)["hardware"] == "a100-large"
    assert f"{VLLM}: hardware l4x1, 0.80 USD per hour" in run("--hardware", "l4x1")
    assert space(hub, VLLM)["hardware"] == "l4x1"


def test_never_sleeping_is_told_as_such_and_set_once(hub: StandIn, run: Callable[..., str]) -> None:
    run()
    assert f"{VLLM}: it never sleeps, and costs until it is paused" in run("--sleep-time", "-1")
    hub.change(VLLM, sleep_s=None)  # as the Hub tells it
    assert "sleeps" not in run("--sleep-time", "-1")


def test_hardware_that_somebody_chose_in_the_place_of_the_free_one_is_kept(
    hub: StandIn, run: Callable[..., str]
) -> None:
    run()
    hub.change(ENV, hardware="cpu-upgrade")
    run()
    assert space(hub, ENV)["hardware"] == "cpu-upgrade"


def test_a_paused_space_is_started_again(hub: StandIn, run: Callable[..., str]) -> None:
    run()
    hub.change(VLLM, paused=True)
    assert f"{VLLM}: it is in stage PAUSED; restarting it" in run()
    assert space(hub, VLLM)["stage"] == "RUNNING"


def test_a_template_is_public_and_holds_nobodys_secrets_and_no_bucket(hub: StandIn, run: Callable[..., str]) -> None:
    printed = run("--namespace", "org", "--template")
    assert hub.described()["buckets"] == {}
    for name in ("org/async-rl-vllm-template", "org/async-rl-env-template"):
        made = space(hub, name)
        assert (made["private"], made["hardware"], made["secrets"]) == (False, "cpu-basic", {})
        assert set(made["variables"]) <= {"MODEL"}
        assert f"hf repos duplicate {name}" in printed


def test_a_template_that_holds_secrets_or_is_private_is_refused(hub: StandIn, run: Callable[..., str]) -> None:
    name = "user/async-rl-vllm-template"
    hub.change(name, private=False, secrets={"HF_TOKEN": {"key": "HF_TOKEN", "value": TOKEN}})
    assert f"{name} holds secrets (HF_TOKEN), and a template has none" in run("--template", code=1)
    hub.change(name, private=True)
    assert f"{name} is private, and a template is public" in run("--template", code=1)
    assert space(hub, name)["commits"] == []
