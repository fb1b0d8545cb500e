"""A Space's folder as it is pushed: what its Dockerfile may use. Knows which files, nothing of what is in them."""

import shutil
from pathlib import Path

from tests.conftest import ROOT

DOCKERFILES = {"space_env": "Dockerfile.env", "space_vllm": "Dockerfile.vllm"}


def stage(unit: str, folder: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("shared", unit):
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    shutil.copy(ROOT / DOCKERFILES[unit], folder / "Dockerfile")
    shutil.copy(ROOT / unit / "requirements.txt", folder / "requirements.txt")
