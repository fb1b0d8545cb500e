"""What the Hub refuses is one sentence that says what to do, with the real client and the stand-in's own answers."""

import json

import pytest

from shared.bucket.retries import Limits
from shared.errors import SyncError
from tests.hub import StandIn
from trainer_box.deploy.hub import Account, Hub

NAME = "user/async-rl-vllm"
QUICK = Limits(answer=5.0, attempts=2, retrying=5.0, first_wait=0.01, longest_wait=1.0)


def refusal(hub: StandIn, status: int, told: str = "no", **values: object) -> str:
    hub.inject("status", "space-create", status=status, body=json.dumps({"error": told}), times=0, **values)
    with pytest.raises(SyncError) as caught:
        Hub("hf_token_of_mine", QUICK).create_space(NAME, True, "l4x1", 60)
    sentence = str(caught.value)
    assert sentence.startswith(f"cannot make Space {NAME}: ")
    assert "\n" not in sentence and "hf_token_of_mine" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "make one of type Write at https://huggingface.co/settings/tokens"),
        (402, "Docker Spaces need a PRO, Team or Enterprise plan"),
        (403, "give it write access to this namespace's repositories and buckets"),
        (404, "it is private and HF_TOKEN may not see it; check --namespace and HF_TOKEN"),
        (409, "something of that name is there already"),
    ],
)
def test_a_refusal_says_the_remedy_and_is_not_asked_again(hub: StandIn, status: int, remedy: str) -> None:
    assert f"HTTP {status}: " in (sentence := refusal(hub, status))
    assert remedy in sentence
    assert hub.count("space-create") == 1


def test_the_hubs_own_reason_is_told_too(hub: StandIn) -> None:
    told = "Static Spaces are free for everyone, but hosting Docker Spaces requires a PRO subscription."
    assert refusal(hub, 402, told).endswith(f"(the Hub says: {told})")


def test_too_many_requests_are_waited_out_and_then_told(hub: StandIn) -> None:
    sentence = refusal(hub, 429, retry_after=0.0)
    assert "HTTP 429: too many requests; run the same command again later, it goes on where it stopped" in sentence
    assert hub.count("space-create") == 2


def test_a_wait_that_is_too_long_is_told_with_its_seconds(hub: StandIn) -> None:
    assert "it goes on where it stopped, in 300 s" in refusal(hub, 429, retry_after=300)
    assert hub.count("space-create") == 1


@pytest.mark.parametrize("status", [400, 409, 503])
def test_hardware_that_is_not_to_be_had_says_to_choose_another(hub: StandIn, status: int) -> None:
    sentence = refusal(hub, status, "Scheduling failure: not enough hardware capacity")
    assert "no such machine is free; run the same command again later, or name another with --hardware" in sentence


@pytest.mark.parametrize("told", ["Organization has reached its storage capacity", "no PRO plan of user capacitylab"])
def test_a_refusal_that_speaks_of_another_capacity_keeps_its_remedy(hub: StandIn, told: str) -> None:
    sentence = refusal(hub, 403, told)
    assert "give it write access to this namespace's repositories and buckets" in sentence
    assert "no such machine is free" not in sentence


def test_a_name_with_capacity_in_it_is_a_name(hub: StandIn) -> None:
    hub.inject("status", "space-create", status=402, body="{}", times=0)
    with pytest.raises(SyncError, match="Docker Spaces need a PRO, Team or Enterprise plan"):
        Hub("hf_x", QUICK).create_space("capacitylab/scheduling-failure", True, "l4x1", 60)


def test_a_hub_that_answers_nothing_is_given_up(hub: StandIn) -> None:
    hub.inject("stall", "whoami", seconds=30, times=0)
    with pytest.raises(SyncError, match="cannot ask whose token HF_TOKEN is: no answer within 0.2 s \\(2 attempts\\)"):
        Hub("hf_x", Limits(answer=0.2, attempts=2, first_wait=0.01)).account()


def test_without_a_token_it_says_to_make_one(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.hf_api.get_token", lambda: None)
    with pytest.raises(SyncError, match="HF_TOKEN is missing, has expired.*make one of type Write"):
        Hub(None, QUICK).account()


@pytest.mark.parametrize(
    "body", ["<html>maintenance", "[]", "null", "{}", '"x"', '{"name": null}', '{"name": "user", "orgs": 1}']
)
def test_an_answer_that_is_none_is_told_as_such(hub: StandIn, body: str) -> None:
    hub.inject("status", "whoami", status=200, body=body, times=0)
    with pytest.raises(SyncError, match="the answer of the Hub cannot be understood"):
        Hub("hf_x", QUICK).account()


@pytest.mark.parametrize("more", ['"orgs": null, "auth": null', '"orgs": [{}]', '"auth": {"accessToken": null}'])
def test_an_account_of_which_little_is_told_is_one(hub: StandIn, more: str) -> None:
    hub.inject("status", "whoami", status=200, body=f'{{"name": "user", {more}}}')
    assert Hub("hf_x", QUICK).account() == Account("user", ("user",), "")
