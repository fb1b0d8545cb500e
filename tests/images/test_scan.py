"""What the scan for secrets finds, and what it does not take for one."""

import io
import tarfile
from pathlib import Path

import pytest

from tests.images.scan import Scan

SECRET = "a-key-that-was-generated"
TOKEN = f"hf_{'a1' * 17}"


@pytest.mark.parametrize("content", [SECRET, f"x{SECRET}x", f" {TOKEN}", "VLLM_API_KEY=0123456789abcdef"])
def test_a_secret_is_found_in_a_folder(tmp_path: Path, content: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_text(content)
    (found,) = Scan([SECRET]).folder(tmp_path)
    assert str(tmp_path / "sub" / "file") in found


def test_a_secret_is_found_wherever_it_lies_in_a_large_file(tmp_path: Path) -> None:
    for before in range((1 << 22) - len(SECRET), (1 << 22) + 1):
        (tmp_path / "file").write_bytes(b" " * before + SECRET.encode())
        assert Scan([SECRET]).folder(tmp_path), before


@pytest.mark.parametrize(
    "content", ["HF_TOKEN", "hf_hub_download", f"6hf_xet{'a' * 31}", f"{TOKEN}-longer", "API_KEY=short", ""]
)
def test_names_are_no_secrets(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    assert Scan([SECRET]).folder(tmp_path) == []


def test_every_layer_is_searched_but_those_of_the_base(tmp_path: Path) -> None:
    for layer in ("base", "ours"):
        with tarfile.open(tmp_path / layer, "w") as archive:
            member = tarfile.TarInfo(f"{layer}/file")
            member.size = len(SECRET)
            archive.addfile(member, io.BytesIO(SECRET.encode()))
    (tmp_path / "config").write_text(f'{{"Env": ["VLLM_API_KEY={"0" * 20}"]}}')
    found = Scan([SECRET]).saved_image(tmp_path, ["base"])
    assert [one.partition(":")[0].removeprefix(str(tmp_path)) for one in found] == ["/config", "ours/file"]
