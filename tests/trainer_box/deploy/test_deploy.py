"""`python -m trainer_box.deploy` with the real client of the Hub against the stand-in: what it leaves there."""

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub import StandIn
from tests.trainer_box.deploy.conftest import BUCKET, ENV, READ_TOKEN, TOKEN, VLLM, kept_keys, space

pytestmark = pytest.mark.usefixtures("checkout")


def test_a_private_bucket_and_two_private_spaces_are_made(hub: StandIn, run: Callable[..., str]) -> None:
    run()
    assert hub.described()["buckets"] == {BUCKET: True}
    vllm, env = space(hub, VLLM), space(hub, ENV)
    assert [one["private"] for one in (vllm, env)] == [True, True]
    assert (vllm["hardware"], vllm["sleep_s"]) == ("l4x1", 3600)
    assert (env["hardware"], env["sleep_s"]) == ("cpu-basic", None)
    assert {name: one["value"] for name, one in vllm["variables"].items()} == {"MODEL": "Qwen/Qwen3-0.6B"}
    assert env["variables"] == {}


def test_the_spaces_get_their_secrets_and_nothing_more(hub: StandIn, run: Callable[..., str]) -> None:
    run()
    keys = kept_keys()
    held = {name: {key: one["value"] for key, one in space(hub, name)["secrets"].items()} for name in (VLLM, ENV)}
    assert held[VLLM] == {"HF_TOKEN": READ_TOKEN, "VLLM_API_KEY": keys["VLLM_API_KEY"]}
    assert held[ENV] == {"ENV_API_KEY": keys["ENV_API_KEY"]}


def test_keys_and_tokens_are_on_no_screen_and_in_a_file_of_the_owner_alone(
    hub: StandIn, run: Callable[..., str]
) -> None:
    printed = run()
    for secret in (TOKEN, READ_TOKEN, *kept_keys().values()):
        assert len(secret) > 10
        assert secret not in printed
    place = Path(os.environ["HOME"], ".config/async-rl-spaces/user.env")
    assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_keys_of_the_environment_are_used_and_written_nowhere(
    hub: StandIn, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "my-own-key-of-vllm")
    monkeypatch.setenv("ENV_API_KEY", "my-own-key-of-env")
    run()
    assert space(hub, VLLM)["secrets"]["VLLM_API_KEY"]["value"] == "my-own-key-of-vllm"
    assert not Path(os.environ["HOME"], ".config").exists()


def test_each_space_gets_one_commit_with_exactly_its_files(hub: StandIn, run: Callable[..., str]) -> None:
    run()
    common = {"Dockerfile", "LICENSE", "README.md", "requirements.txt", "shared/__init__.py", "shared/errors.py"}
    words = {f"shared/words/{name}" for name in ("LICENSE", "__init__.py", "tiny.txt")}
    own = {"shared/deltas.py", *(f"space_vllm/{name}" for name in ("__init__.py", "serve.py", "pyproject.toml"))}
    assert set(space(hub, VLLM)["files"]) == common | own
    own = {"shared/wordle.py", *(f"space_env/{name}" for name in ("__init__.py", "serve.py", "openenv.yaml"))}
    own |= {"space_env/page/__init__.py", "space_env/page/game.css"}
    assert set(space(hub, ENV)["files"]) == common | words | own
    assert [len(space(hub, name)["commits"]) for name in (VLLM, ENV)] == [1, 1]


def test_a_public_bucket_is_refused_before_anything_is_made(hub: StandIn, run: Callable[..., str]) -> None:
    hub.change(BUCKET, is_bucket=True, private=False)
    assert f"bucket {BUCKET} is public" in run(code=1)
    assert hub.described()["spaces"] == {}


def test_the_card_tells_the_model_that_is_served(hub: StandIn, run: Callable[..., str]) -> None:
    run("--model", "Qwen/Qwen3-4B")
    card = base64.b64decode(space(hub, VLLM)["files"]["README.md"]).decode()
    assert "models:\n  - Qwen/Qwen3-4B\n" in card


@pytest.mark.parametrize("what", ["space-create", "bucket-create", "commit"])
def test_what_was_made_while_its_answer_was_lost_is_made(hub: StandIn, run: Callable[..., str], what: str) -> None:
    hub.inject("drop", what)
    run()
    assert hub.described()["buckets"] == {BUCKET: True}
    assert [len(space(hub, name)["commits"]) for name in (VLLM, ENV)] == [1, 1]


def test_a_bucket_that_is_not_paid_for_is_told_with_where_to_pay(hub: StandIn, run: Callable[..., str]) -> None:
    hub.inject("status", "bucket-create", status=402)
    assert f"cannot make bucket {BUCKET}: HTTP 402: the account's plan does not cover it; see https" in run(code=1)
