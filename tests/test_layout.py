"""The rules of the tree: who may import whom, how large a file gets, what README promises about the files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("shared", "trainer_box", "space_vllm", "space_env")
LONGEST_FILE = 300
TEXT_SUFFIXES = set(".py .js .md .toml .lock .yaml .yml .json .jinja .css .html .vllm .env".split())
# Paths of one person's machine, and references to a tracker that readers cannot open.
FORBIDDEN = re.compile(r"(?<![\w.$~-])/(?:work|root|mnt|opt|Users)/\w|/tmp/d[e]v\b|\bissue #?\d", re.IGNORECASE)


def tracked_files() -> list[str]:
    """Tracked and not ignored, relative to the root, those deleted in the working tree left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def package_modules() -> list[str]:
    return [name for name in tracked_files() if name.endswith(".py") and name.split("/")[0] in PACKAGES]


def in_a_fresh_interpreter(code: str) -> str:
    """The last line that the code prints."""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


def importable(package: str) -> list[str]:
    """The package's modules; running one as a script is not importing it, so `__main__` is left out."""
    modules = [name.removesuffix(".py") for name in package_modules() if name.startswith(f"{package}/")]
    return [name.removesuffix("/__init__").replace("/", ".") for name in modules if not name.endswith("/__main__")]


def tree_of(readme: str) -> list[str]:
    """The modules of the packages in README's tree block, which has one name per line, two spaces per level.

    A folder ends in a slash; whatever follows the first word of a line is its description.
    """
    block = re.search(r"^```tree\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert block is not None, "README.md has no block fenced by ```tree and ```"
    folders: list[str] = []
    files: list[str] = []
    for line in filter(str.strip, block[1].splitlines()):
        level, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders[level:] = [name] if name.endswith("/") else []
        path = "".join(folders) if name.endswith("/") else "".join([*folders, name])
        files += [path] if path.endswith(".py") and path.split("/")[0] in PACKAGES else []
    return sorted(files)


def test_import_contracts_hold() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    ran = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_module_has_a_docstring() -> None:
    bare = [name for name in package_modules() if not ast.get_docstring(ast.parse((ROOT / name).read_text()))]
    assert bare == []


def test_no_module_is_longer_than_three_hundred_lines() -> None:
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in package_modules()}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_the_readme_tree_lists_exactly_the_modules_there_are() -> None:
    described = [name for name in package_modules() if not name.endswith("/__init__.py")]
    assert tree_of((ROOT / "README.md").read_text()) == described


def test_a_readme_tree_is_read_by_its_indentation() -> None:
    lines = [
        "shared/  what all use",
        "  errors.py  the errors",
        "  words/",
        "    make.py",
        "  seed.py",
        "tests/",
        "  a.py",
    ]
    readme = "\n".join(["# x", "```tree", *lines, "```", ""])
    assert tree_of(readme) == ["shared/errors.py", "shared/seed.py", "shared/words/make.py"]


def test_no_file_names_a_path_of_one_machine_or_an_issue_number() -> None:
    texts = [name for name in tracked_files() if Path(name).suffix in TEXT_SUFFIXES or name in ("Makefile", ".ci/run")]
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in texts
        for number, line in enumerate((ROOT / name).read_text().splitlines(), start=1)
        if FORBIDDEN.search(line)
    ]
    assert found == []


@pytest.mark.slow
def test_importing_space_env_does_not_load_torch() -> None:
    code = f"import sys, {', '.join(importable('space_env'))}; print('torch' in sys.modules)"
    assert in_a_fresh_interpreter(code) == "False"


@pytest.mark.slow
def test_trainer_box_imports_where_vllm_is_not_installed() -> None:
    # TRL loads vLLM where it finds it, so its absence is played: None in sys.modules makes every import of it fail.
    code = f"import sys; sys.modules['vllm'] = None; import {', '.join(importable('trainer_box'))}; print('imported')"
    assert in_a_fresh_interpreter(code) == "imported"
