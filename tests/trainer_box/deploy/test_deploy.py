"""`python -m trainer_box.deploy` with the real client of the Hub against the stand-in: what it leaves there."""

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.errors import SyncError
from tests.hub import StandIn
from tests.trainer_box.deploy.conftest import READ_TOKEN, TOKEN
from trainer_box.deploy import command as deploy
from trainer_box.deploy import smoke
from trainer_box.deploy.apply import described
from trainer_box.deploy.keys import NAMES

VLLM, ENV, BUCKET = "user/async-rl-vllm", "user/async-rl-env", "user/async-rl-weights"

pytestmark = pytest.mark.usefixtures("checkout")


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Deploys, and returns what was printed; the exit code has to be the one that is expected."""

    def call(*arguments: str, code: int = 0) -> str:
        given = arguments if "--namespace" in arguments else ("--namespace", "user", *arguments)
        ended = deploy.main(given)
        printed = capfd.readouterr()
        assert ended == code, printed
        return printed.err if code else printed.out

    return call


def space(hub: StandIn, name: str) -> dict[str, Any]:
    found: dict[str, Any] = hub.described()["spaces"][name]
    return found


def kept_keys() -> dict[str, str]:
    text = Path(os.environ["HOME"], ".config/async-rl-spaces/user.env").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


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


def test_the_printed_command_reads_the_keys_that_were_deployed(
    hub: StandIn, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they came from, and whatever is in the shell that it is pasted into."""
    run()
    monkeypatch.setenv("VLLM_API_KEY", "it's-mine-$now")
    source = next(line.strip() for line in run().splitlines() if "set -a" in line)
    told = 'printf \'%s\\n\' "$VLLM_API_KEY" "$ENV_API_KEY"'
    ran = subprocess.run(["bash", "-euc", f"{source}\n{told}"], capture_output=True, text=True, timeout=30, check=True)
    deployed = [space(hub, VLLM)["secrets"]["VLLM_API_KEY"], space(hub, ENV)["secrets"]["ENV_API_KEY"]]
    assert ran.stdout.splitlines() == [one["value"] for one in deployed]
    assert ran.stdout.startswith("it's-mine-$now\n")


def test_the_printed_command_is_one_that_a_shell_reads_as_it_is_meant(
    hub: StandIn, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "my $(touch broken) home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python")
    *_, source, first, second = run().splitlines()
    place = home / ".config/async-rl-spaces/user.env"
    assert shlex.split(source) == ["set", "-a;", ".", f"{place};", "set", "+a"]
    assert shlex.split(f"{first}\n{second}")[:5] == [sys.executable, "-m", "trainer_box", "--model", "Qwen/Qwen3-0.6B"]


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


def test_the_last_lines_are_the_trainers_command(hub: StandIn, run: Callable[..., str]) -> None:
    *_, source, first, second = run().splitlines()
    assert source.strip() == f"set -a; . {os.environ['HOME']}/.config/async-rl-spaces/user.env; set +a"
    assert first.strip() == f"{sys.executable} -m trainer_box --model Qwen/Qwen3-0.6B --bucket {BUCKET} \\"
    assert second.strip() == f"--vllm-url {hub.url}/app/{VLLM} --env-url {hub.url}/app/{ENV}"


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


def test_a_public_bucket_is_refused_before_anything_is_made(hub: StandIn, run: Callable[..., str]) -> None:
    hub.change(BUCKET, is_bucket=True, private=False)
    assert f"bucket {BUCKET} is public" in run(code=1)
    assert hub.described()["spaces"] == {}


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


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        *(
            ("--sleep-time", value, "is not 60 to 2592000 seconds, or -1")
            for value in ("0", "-5", "1e3", "9" * 15, "")
        ),
        *(
            ("--model", value, "is not a model on the Hub")
            for value in ("", "a b", "./local", "/srv/m", "gpt2", "$(id)")
        ),
        ("--namespace", "a/b", "'a/b' is not the name of a user or an organisation"),
    ],
)
def test_values_that_cannot_be_right_are_refused_as_arguments(
    capsys: pytest.CaptureFixture[str], option: str, value: str, told: str
) -> None:
    with pytest.raises(SystemExit):
        deploy.command_line().parse_args(["--namespace", "user", f"{option}={value}"])
    assert told in capsys.readouterr().err


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


def test_a_dry_run_writes_what_would_be_pushed_and_asks_nobody(
    hub: StandIn, run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("SPACE_HF_TOKEN")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    folder = tmp_path / "dry"
    for _ in range(2):
        run("--dry-run", str(folder))
    for name in ("space_vllm", "space_env"):
        pushed = space(hub, VLLM if name == "space_vllm" else ENV)["files"]
        written = {str(path.relative_to(folder / name)) for path in (folder / name).rglob("*") if path.is_file()}
        assert written == set(pushed)
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["bucket"] == {"name": BUCKET, "private": True}
    assert [one["repo_id"] for one in plan["spaces"]] == [VLLM, ENV]
    assert [one["secrets"] for one in plan["spaces"]] == [["HF_TOKEN", "VLLM_API_KEY"], ["ENV_API_KEY"]]
    assert [set(one["files"]) for one in plan["spaces"]] == [set(space(hub, name)["files"]) for name in (VLLM, ENV)]


def test_a_dry_run_touches_no_folder_with_other_files(run: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years")
    told = run("--dry-run", str(tmp_path / "full"), code=1)
    assert f"holds other files ({tmp_path}/full/thesis.txt); name a new or empty folder" in told
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("text", ["{}", "[]", "null", "no json", '{"spaces": [{"folder": "space_env"}]}'])
def test_a_plan_of_somebody_else_is_a_file_like_others(run: Callable[..., str], tmp_path: Path, text: str) -> None:
    folder = tmp_path / "full"
    (folder / "space_env").mkdir(parents=True)
    (folder / "plan.json").write_text(text)
    (folder / "space_env" / "thesis.txt").write_text("years")
    assert "holds other files" in run("--dry-run", str(folder), code=1)
    assert (folder / "space_env" / "thesis.txt").read_text() == "years"


def test_what_somebody_put_beside_an_earlier_dry_run_stays(run: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "dry"
    run("--dry-run", str(folder))
    before = (folder / "plan.json").read_text()
    (folder / "space_env" / "notes.txt").write_text("mine")
    told = run("--dry-run", str(folder), "--model", "Qwen/Qwen3-4B", code=1)
    assert f"holds other files ({folder}/space_env/notes.txt)" in told
    assert (folder / "plan.json").read_text() == before


@pytest.mark.parametrize("place", ["space_env/out", "shared", "trainer_box/deploy/out"])
def test_a_dry_run_does_not_write_into_the_code(run: Callable[..., str], checkout: Path, place: str) -> None:
    before = set(checkout.rglob("*"))
    assert "is among the project's own code" in run("--dry-run", str(checkout / place), code=1)
    assert set(checkout.rglob("*")) == before


def test_the_card_tells_the_model_that_is_served(hub: StandIn, run: Callable[..., str]) -> None:
    run("--model", "Qwen/Qwen3-4B")
    card = base64.b64decode(space(hub, VLLM)["files"]["README.md"]).decode()
    assert "models:\n  - Qwen/Qwen3-4B\n" in card


def test_a_file_that_git_does_not_know_is_pushed_nowhere(
    hub: StandIn, run: Callable[..., str], checkout: Path
) -> None:
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(checkout), *command], check=True, timeout=30)
    run("--dry-run", str(checkout.parent / "dry"))
    (checkout / "space_env/page/forgotten.py").write_text("TOKEN = 'hf_mine'")
    told = run(code=1)
    assert "space_env/page/forgotten.py would be pushed, but git does not know it; git add it, or move it away" in told
    assert hub.described() == {"spaces": {}, "buckets": {}}


@pytest.mark.parametrize("what", ["space-create", "bucket-create", "commit"])
def test_what_was_made_while_its_answer_was_lost_is_made(hub: StandIn, run: Callable[..., str], what: str) -> None:
    hub.inject("drop", what)
    run()
    assert hub.described()["buckets"] == {BUCKET: True}
    assert [len(space(hub, name)["commits"]) for name in (VLLM, ENV)] == [1, 1]


def test_a_bucket_that_is_not_paid_for_is_told_with_where_to_pay(hub: StandIn, run: Callable[..., str]) -> None:
    hub.inject("status", "bucket-create", status=402)
    assert f"cannot make bucket {BUCKET}: HTTP 402: the account's plan does not cover it; see https" in run(code=1)


def test_outside_of_a_checkout_the_missing_file_is_named(run: Callable[..., str], checkout: Path) -> None:
    (checkout / "Dockerfile.vllm").unlink()
    sentence = run("--dry-run", str(checkout.parent / "dry"), code=1)
    assert f"{checkout}/Dockerfile.vllm is not there; the Spaces are made from a checkout" in sentence


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


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("SPACE_HF_TOKEN", "", "SPACE_HF_TOKEN is not set"),
        ("SPACE_HF_TOKEN", TOKEN, "SPACE_HF_TOKEN is the same as HF_TOKEN"),
        ("SPACE_HF_TOKEN", "hf_read\n", "SPACE_HF_TOKEN holds a space, a line break"),
        ("SPACE_HF_TOKEN", "hf_re ad", "SPACE_HF_TOKEN holds a space, a line break"),
        ("HF_TOKEN", "", "HF_TOKEN is not set; make a token of type Write at https://huggingface.co/settings/tokens"),
        ("HF_TOKEN", f"{TOKEN}\n", "HF_TOKEN holds a space, a line break"),
        ("HF_TOKEN", "hf_s\u00e9cret", "HF_TOKEN holds a space, a line break"),
        ("VLLM_API_KEY", "my secret key", "VLLM_API_KEY holds a space"),
        ("VLLM_API_KEY", "k\u00e9y", "VLLM_API_KEY holds a space, a line break or another character"),
    ],
)
def test_secrets_that_cannot_be_right_are_refused_before_anything_is_made(
    hub: StandIn, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(name, value)
    printed = run(code=1)
    assert sentence in printed
    assert not value or value.strip() not in printed
    assert hub.described() == {"spaces": {}, "buckets": {}}


@pytest.mark.parametrize("arguments", [(), ("--template",)])
def test_a_login_that_the_hubs_client_keeps_is_not_used(
    hub: StandIn, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: TOKEN)
    assert "HF_TOKEN is not set" in run(*arguments, code=1)
    assert hub.count("whoami") == 0


@pytest.mark.parametrize(
    ("token", "told"),
    [
        ({"role": "write"}, "everything"),
        (
            {"role": "fineGrained", "fineGrained": {"global": [], "scoped": [{"permissions": ["repo.write"]}]}},
            "repo.write",
        ),
    ],
)
def test_a_token_for_the_space_that_may_write_is_refused(
    hub: StandIn, run: Callable[..., str], token: dict[str, object], told: str
) -> None:
    account = {"name": "user", "orgs": [], "auth": {"accessToken": token}}
    hub.inject("status", "whoami", status=200, body=json.dumps(account), after=1)
    assert f"SPACE_HF_TOKEN may write ({told}), and so could whoever gets into the Space" in run(code=1)
    assert hub.described() == {"spaces": {}, "buckets": {}}


def test_a_token_for_the_space_that_the_hub_does_not_know_is_told_by_its_name(
    hub: StandIn, run: Callable[..., str]
) -> None:
    hub.inject("status", "whoami", status=401, after=1)
    assert "whose token SPACE_HF_TOKEN is: HTTP 401: SPACE_HF_TOKEN has expired, or is none" in run(code=1)


def test_another_ones_namespace_and_a_read_token_are_refused(hub: StandIn, run: Callable[..., str]) -> None:
    sentence = run("--namespace", "stranger", code=1)
    assert "HF_TOKEN is of user, whose namespaces are user, org, not stranger" in sentence
    told = {"name": "user", "orgs": [], "auth": {"accessToken": {"role": "read"}}}
    hub.inject("status", "whoami", status=200, body=json.dumps(told))
    assert "HF_TOKEN may only read" in run(code=1)
    assert hub.described() == {"spaces": {}, "buckets": {}}


def test_a_read_token_that_cannot_see_the_bucket_is_refused(hub: StandIn, run: Callable[..., str]) -> None:
    hub.change(BUCKET, is_bucket=True, private=True)
    hub.inject("status", "bucket", status=404, after=2)
    assert f"SPACE_HF_TOKEN may not read bucket {BUCKET}" in run(code=1)


def test_the_smoke_check_says_its_cost_first_and_then_asks_both_spaces_with_their_keys(
    hub: StandIn, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str, dict[str, str]]] = []

    def check(vllm_url: str, env_url: str, model: str, report: object) -> None:
        asked.append((vllm_url, env_url, model, {name: os.environ[name] for name in NAMES}))

    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is as before when the test ends
    monkeypatch.setattr(smoke, "check", check)
    printed = run("--smoke")
    assert asked == [(f"{hub.url}/app/{VLLM}", f"{hub.url}/app/{ENV}", "Qwen/Qwen3-0.6B", kept_keys())]
    assert printed.index("about 0.07 USD for 5 minutes") < printed.index(f"{VLLM}: making it")


def test_interrupting_it_while_it_still_imports_says_that_it_can_be_run_again(tmp_path: Path) -> None:
    (tmp_path / "stamina").mkdir()
    (tmp_path / "stamina/__init__.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer_box.deploy", "--namespace", "user"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=30)[1]
    assert (process.returncode, told) == (
        130,
        "stopped; what was made is there, and the same command goes on from it\n",
    )


def test_a_call_that_is_repeated_is_told_in_a_sentence(hub: StandIn, run: Callable[..., str]) -> None:
    hub.inject("status", "whoami", status=503, times=1)
    printed = run()
    assert "cannot ask whose token HF_TOKEN is: HTTP 503: " in printed
    assert "; trying again\n" in printed
    assert "stamina" not in printed


def test_errors_of_ours_are_sync_errors(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPACE_HF_TOKEN")
    with pytest.raises(SyncError):
        deploy.run(deploy.command_line().parse_args(["--namespace", "user"]))
