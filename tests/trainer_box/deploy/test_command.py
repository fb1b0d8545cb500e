"""What the command takes and refuses, from whom it takes secrets, and what it prints."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import SyncError
from tests.hub import StandIn
from tests.trainer_box.deploy.conftest import BUCKET, ENV, TOKEN, VLLM, kept_keys, space
from trainer_box.deploy import command as deploy
from trainer_box.deploy import smoke
from trainer_box.deploy.keys import NAMES

pytestmark = pytest.mark.usefixtures("checkout")


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
    monkeypatch.setattr(sys, "executable", "/usr/my python/bin/python")
    *_, source, first, second = run().splitlines()
    place = home / ".config/async-rl-spaces/user.env"
    assert shlex.split(source) == ["set", "-a;", ".", f"{place};", "set", "+a"]
    assert shlex.split(f"{first}\n{second}")[:5] == [sys.executable, "-m", "trainer_box", "--model", "Qwen/Qwen3-0.6B"]


def test_the_last_lines_are_the_trainers_command(hub: StandIn, run: Callable[..., str]) -> None:
    *_, source, first, second = run().splitlines()
    assert source.strip() == f"set -a; . {os.environ['HOME']}/.config/async-rl-spaces/user.env; set +a"
    assert first.strip() == f"{sys.executable} -m trainer_box --model Qwen/Qwen3-0.6B --bucket {BUCKET} \\"
    assert second.strip() == f"--vllm-url {hub.url}/app/{VLLM} --env-url {hub.url}/app/{ENV}"


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
