"""The Spaces' cards: headers that the Hub understands, and what a person who duplicates one has to know."""

import re
from pathlib import Path

import pytest
from huggingface_hub import SpaceCard

from shared.identity import BUCKET
from trainer_box.deploy.hardware import DEFAULT_MODEL, HARDWARE, PRICES_OF
from trainer_box.deploy.plan import deployment
from trainer_box.deploy.staging import ENV, VLLM

ROOT = Path(__file__).resolve().parents[3]
PLAN = deployment("user", DEFAULT_MODEL, "l4x1")
CARDS = [(PLAN.vllm, ROOT / VLLM.package / "README.md"), (PLAN.env, ROOT / ENV.package / "README.md")]
# https://huggingface.co/docs/hub/spaces-config-reference, those that a card of ours may have
KEYS = {"title", "colorFrom", "colorTo", "sdk", "app_port", "suggested_hardware", "startup_duration_timeout", "models"}
KEYS |= {"tags", "short_description", "license"}
COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
each_card = pytest.mark.parametrize(("plan", "path"), CARDS, ids=["vllm", "env"])


@each_card
def test_the_header_is_one_that_the_hub_knows(plan: object, path: Path) -> None:
    header = SpaceCard.load(path).data.to_dict()
    assert set(header) <= KEYS
    assert (header["sdk"], header["app_port"]) == ("docker", 7860)
    assert header["suggested_hardware"] in HARDWARE
    assert re.fullmatch(r"\d+[hm]", header["startup_duration_timeout"])
    assert 0 < len(header["short_description"]) <= 60
    assert {header["colorFrom"], header["colorTo"]} <= COLOURS


def test_the_vllm_card_names_the_default_model_and_a_gpu() -> None:
    header = SpaceCard.load(CARDS[0][1]).data
    assert header.models == [DEFAULT_MODEL]
    assert HARDWARE[header.to_dict()["suggested_hardware"]].gpu_gb


@each_card
def test_every_secret_and_variable_that_is_deployed_is_in_the_table(plan: object, path: Path) -> None:
    kinds = dict(re.findall(r"^\| `([A-Z_]+)` \| (secret|variable) \|", path.read_text(), re.MULTILINE))
    space = next(space for space, card in CARDS if card == path)
    assert {name for name, kind in kinds.items() if kind == "secret"} == set(space.secrets)
    assert set(space.variables) <= {name for name, kind in kinds.items() if kind == "variable"}


@each_card
def test_it_says_what_it_costs_how_to_see_that_it_works_and_how_to_stop(plan: object, path: Path) -> None:
    text = path.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert {"What it needs and costs", "Secrets and variables", "How to see that it works"} <= set(headings)
    assert {"How to stop paying", "Security"} <= set(headings)
    assert f"(prices of {PRICES_OF})" in text
    for name, price in re.findall(r"`([a-z0-9-]+)` \([^)]*\) (?:at|costs) ([\d.]+) USD", text):
        assert f"{HARDWARE[name].usd_per_hour:.2f}" == price


def test_the_vllm_card_names_the_bucket_that_is_followed_by_default() -> None:
    assert f"`{BUCKET}`" in CARDS[0][1].read_text()
