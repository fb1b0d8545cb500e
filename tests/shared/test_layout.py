import pytest

from shared import layout
from shared.types import LARGEST_VERSION


def test_a_run_lies_in_its_folder() -> None:
    assert layout.run_file("r") == "r/run.json"
    assert layout.pointer("r") == "r/latest.json"
    assert layout.anchor("r", 10) == "r/anchors/step_000010.safetensors"
    assert layout.delta("r", 11) == "r/deltas/step_000011.safetensors"
    assert layout.manifest("r", 11) == "r/manifests/000011.json"
    assert layout.anchor_manifest("r", 11) == "r/manifests/000011.anchor.json"
    assert layout.rollouts("r", 11) == "r/rollouts/000011.jsonl"


@pytest.mark.parametrize("version", [0, 7, 999_999, 1_000_000, 123_456_789, LARGEST_VERSION])
def test_the_version_of_a_path_is_the_one_it_was_made_of(version: int) -> None:
    for place in (layout.anchor, layout.delta, layout.manifest):
        assert layout.version_of(place("r.1", version)) == version


def test_shards_have_the_version_of_the_whole() -> None:
    assert layout.version_of("r/anchors/step_000010-00001-of-00003.safetensors") == 10


@pytest.mark.parametrize(
    "path",
    [
        "r/run.json",
        "r/latest.json",
        "r/rollouts/000011.jsonl",
        "r/manifests/000011.anchor.json",
        "r/manifests/0000011.json",
        "r/manifests/1000000000.json",
        "r/anchors/step_0000010.safetensors",
        "r/anchors/step_10.safetensors",
        "r/anchors/step_000010.safetensors.part",
        "r/anchors/.step_000010.safetensors",
        "r/anchors/step_-00010.safetensors",
        "r/anchors/step_000010\n.safetensors",
        "r/anchors/step_00001\u0663.safetensors",
        "",
        "/",
    ],
)
def test_other_files_have_no_version(path: str) -> None:
    assert layout.version_of(path) is None
