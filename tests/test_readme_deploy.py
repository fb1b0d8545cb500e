"""README's sections Deploy and Duplicate, followed as they are written, with the stand-in in the place of the Hub."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub.cli.hf import app

from tests.hub import StandIn, stand_in
from tests.trainer_box.test_memory import SHAPES
from trainer_box import memory
from trainer_box.deploy import command as deploy
from trainer_box.deploy.hardware import HARDWARE, MODELS, PRICES_OF

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
TEXTS = [README, *((ROOT / unit / "README.md").read_text() for unit in ("space_vllm", "space_env"))]
DEADLINE_S = 200
ROW_TOKENS = 8192


@pytest.fixture
def hub() -> Iterator[StandIn]:
    with stand_in() as running:
        yield running


@pytest.fixture
def shell(hub: StandIn, tmp_path: Path) -> Callable[[str], str]:
    """Types a block of commands, as a user who has set both tokens and has `hf` at hand; returns what was printed."""
    tokens = {"HF_TOKEN": "hf_writewritewrite", "SPACE_HF_TOKEN": "hf_readreadreadread"}
    places = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {**os.environ, **tokens, **places, **hub.environment(tmp_path / "xet"), "PYTHONPATH": str(ROOT)}
    for name in ("VLLM_API_KEY", "ENV_API_KEY"):
        environment.pop(name, None)

    def type_in(block: str) -> str:
        script = block.replace(".venv/bin/python", sys.executable).replace("NAME", "user").replace("ORG", "org")
        typed = ["bash", "-euo", "pipefail", "-c", script]
        ran = subprocess.run(typed, cwd=ROOT, env=environment, timeout=DEADLINE_S, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return type_in


def block_with(text: str) -> str:
    (found,) = [block for block in re.findall(r"^```sh\n(.*?)^```$", README, re.M | re.S) if text in block]
    return str(found)


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.slow
def test_the_two_commands_lead_to_a_running_fleet(hub: StandIn, shell: Callable[[str], str]) -> None:
    first, second = block_with("deploy --namespace NAME\n").splitlines()
    assert first == "make setup"
    printed = shell(second)
    spaces = hub.described()["spaces"]
    assert [(name, space["private"], space["stage"]) for name, space in sorted(spaces.items())] == [
        ("user/async-rl-env", True, "RUNNING"),
        ("user/async-rl-vllm", True, "RUNNING"),
    ]
    assert "Dockerfile" in spaces["user/async-rl-vllm"]["files"]
    assert hub.described()["buckets"] == {"user/async-rl-weights": True}
    assert "-m trainer_box --model Qwen/Qwen3-0.6B --bucket user/async-rl-weights" in printed


@pytest.mark.slow
def test_duplicates_are_private_and_have_their_owners_secrets(hub: StandIn, shell: Callable[[str], str]) -> None:
    shell(block_with("--template"))
    shell(block_with("hf repos duplicate"))
    spaces = hub.described()["spaces"]
    for name in ("org/async-rl-vllm-template", "org/async-rl-env-template"):
        assert (spaces[name]["private"], spaces[name]["secrets"]) == (False, {})
    vllm, env = spaces["user/async-rl-vllm"], spaces["user/async-rl-env"]
    assert (vllm["private"], env["private"]) == (True, True)
    assert (vllm["hardware"], vllm["sleep_s"], env["hardware"]) == ("l4x1", 3600, "cpu-basic")
    assert vllm["secrets"].keys() == {"HF_TOKEN", "VLLM_API_KEY"}
    assert vllm["secrets"]["HF_TOKEN"]["value"] == "hf_readreadreadread"
    assert len(env["secrets"]["ENV_API_KEY"]["value"]) >= 43
    assert vllm["variables"]["MODEL"]["value"] == "Qwen/Qwen3-0.6B"
    assert "BUCKET" not in vllm["variables"]


def commands_of_the_hub() -> set[str]:
    found = [line for text in TEXTS for line in re.findall(r"\bhf [a-z]+ [a-z][^`#|;\n]*", text)]
    return {line.strip() for line in found}


@pytest.mark.parametrize("command", sorted(commands_of_the_hub()))
def test_every_command_of_the_hub_named_exists_with_its_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = re.match(r"hf((?: [a-z]+)+)(?= |$)", command)
    assert names is not None
    with pytest.raises(SystemExit) as ended:
        app.main([*names[1].split(), "--help"], prog_name="hf")
    shown = capsys.readouterr().out
    assert ended.value.code == 0, shown
    for option in re.findall(r"(?<= )--?[a-zA-Z][a-zA-Z-]*", command):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", shown), f"{option} of {command}"


def test_every_option_of_deploy_named_exists() -> None:
    told = section("Deploy on Spaces") + section("Duplicate instead")
    named = {option for option in re.findall(r"`(--[a-z-]+)", told)} - {"--pause-spaces-at-end", "--token-budget"}
    known = deploy.command_line()._option_string_actions
    assert {"--dry-run", "--smoke", "--sleep-time"} <= named
    assert named - {"--vllm-server-timeout"} <= set(known)


def test_the_table_of_hardware_is_what_the_code_says() -> None:
    rows = re.findall(r"^\| (Qwen/\S+) \| (\S+) GB \| \d+ GB \| (\S+) GB \| (\S+) \| (\S+) \| (\S+) \|$", README, re.M)
    expected = []
    for model, config in zip(MODELS, SHAPES, strict=True):
        need = memory.estimate(config, ROW_TOKENS, "float32", checkpointing=True)
        price, hour = HARDWARE[model.hardware].usd_per_hour, 3600
        hundred = HARDWARE[model.hardware].usd(100 * 60)
        gigabytes = f"{(need.training + need.activations) / 1e9:.1f}", f"{need.baseline / 1e9:.1f}"
        expected.append((model.name, *gigabytes, model.hardware, f"{price:.2f}", f"{hundred:.2f}"))
        assert 2 * model.parameters < 0.8e9 * HARDWARE[model.hardware].gpu_gb, "bf16 weights, and room for the cache"
        assert HARDWARE[model.hardware].usd(hour) == price
    assert rows == expected
    assert f"Prices are of {PRICES_OF}" in README


def test_the_limits_say_what_was_never_run() -> None:
    told = " ".join(section("Limits").split())
    assert "Nothing was ever deployed: no real Space, no GPU, not the official vLLM image" in told
