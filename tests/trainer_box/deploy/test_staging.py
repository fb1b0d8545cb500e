"""What this checkout's own Spaces consist of: enough to start, and no more than they need."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_box.deploy.staging import ENV, VLLM, Unit, content_hash, files_of, stage

each_unit = pytest.mark.parametrize("unit", [VLLM, ENV], ids=["vllm", "env"])


def loaded_in(folder: Path, module: str) -> set[str]:
    """The project's own files that are loaded when a module is imported in a staged folder alone."""
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import {module}; "
        "own = ('shared', 'space_env', 'space_vllm'); "
        "print(*(module.__file__ for name, module in sys.modules.items() if name.split('.')[0] in own))"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code], cwd=folder, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.splitlines()[-1].split())


@pytest.mark.slow
@each_unit
def test_the_staged_folder_alone_is_enough_to_start_it(unit: Unit, tmp_path: Path) -> None:
    stage(unit, tmp_path / "staged")
    loaded = loaded_in(tmp_path / "staged", f"{unit.package}.serve")
    assert loaded
    assert not [file for file in loaded if not file.startswith(str(tmp_path))]


def test_the_environment_gets_nothing_of_weights_and_buckets() -> None:
    assert not [path for path in files_of(ENV) if re.search(r"bucket|delta|chain|fingerprint|torch|monitor", path)]
    assert "shared/words/full_answers.txt" in files_of(ENV)


@each_unit
def test_no_other_unit_no_test_and_no_secret_is_staged(unit: Unit) -> None:
    for path, source in files_of(unit).items():
        assert path.split("/")[0] in {"Dockerfile", "LICENSE", "README.md", "requirements.txt", "shared", unit.package}
        assert not re.search(r"hf_[A-Za-z0-9]{20,}", source.read_text(encoding="utf-8")), path


@each_unit
def test_the_dockerfile_copies_only_what_is_staged(unit: Unit) -> None:
    copied = re.findall(r"^COPY (?:--\S+ )*(\S+) ", files_of(unit)["Dockerfile"].read_text(), re.MULTILINE)
    staged = set(files_of(unit))
    folders = {str(parent) for path in staged for parent in Path(path).parents}
    assert copied
    assert set(copied) <= staged | folders


def test_a_changed_file_changes_the_hash() -> None:
    before = content_hash({"a": b"one"})
    assert content_hash({"b": b"one"}) != before
    assert content_hash({"a": b"two"}) != before
