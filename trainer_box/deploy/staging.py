"""Which files a Space consists of, and how they are laid out: the one list of what is ever pushed.

A Space's folder holds its Dockerfile, its card as README.md, the lock of its dependencies, its package, and what that
needs of `shared`. Only code in packages and data of known names is taken, and nothing is pushed that git does not know
where there is git, so that nothing private that lies beside them is. Knows nothing of the Hub.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SyncError
from trainer_box.deploy.hardware import DEFAULT_MODEL
from trainer_box.deploy.needed import needed

CHECKOUT = Path(__file__).resolve().parents[2]
_CODE = {".py", ".css", ".html", ".js"}
_WORDS = Path("shared", "words")
_CODE_OF_ALL = "shared"


@dataclass(frozen=True)
class Unit:
    """What runs in one Space: `package` is also the name of its folder.

    `status` is the path at which it tells what it is, with its key, which the secret `key` holds; `data` is the file
    in its package that is no code.
    """

    package: str
    dockerfile: str
    status: str
    key: str
    data: str
    licences: tuple[str, ...] = ("LICENSE",)

    @property
    def renamed(self) -> dict[str, str]:
        """What lies at the top of the Space under another name, or in another place, than in the checkout."""
        top = {
            "Dockerfile": self.dockerfile,
            "README.md": f"{self.package}/README.md",
            "requirements.txt": f"{self.package}/requirements.txt",
        }
        return {**top, **{path: path for path in self.licences}}


VLLM = Unit("space_vllm", "Dockerfile.vllm", "/weights/status", "VLLM_API_KEY", "pyproject.toml")
_ENV_LICENCES = ("LICENSE", "shared/words/LICENSE")
ENV = Unit("space_env", "Dockerfile.env", "/status", "ENV_API_KEY", "openenv.yaml", _ENV_LICENCES)


def files_of(unit: Unit) -> dict[str, Path]:
    """Path in the Space to file here, sorted. Raises SyncError where the checkout lacks one."""
    found = {there: CHECKOUT / here for there, here in unit.renamed.items()}
    if missing := [path for path in found.values() if not path.is_file()]:
        raise SyncError(
            f"{missing[0]} is not there; the Spaces are made from a checkout of the repository, so run this in one"
        )
    code = {*(CHECKOUT / unit.package).rglob("*"), *needed(_CODE_OF_ALL, unit.package, CHECKOUT)}
    found.update({str(path.relative_to(CHECKOUT)): path for path in code if _is_part(path, unit)})
    for moved in set(unit.renamed.values()) - set(unit.renamed):
        found.pop(moved, None)
    return dict(sorted(found.items()))


def contents_of(unit: Unit, model: str = DEFAULT_MODEL) -> dict[str, bytes]:
    """Path in the Space to content, sorted; the card speaks of `model`. Raises SyncError as `files_of` does."""
    contents = {there: here.read_bytes() for there, here in files_of(unit).items()}
    contents["README.md"] = contents["README.md"].replace(DEFAULT_MODEL.encode(), model.encode())
    return contents


def stage(unit: Unit, folder: Path, model: str = DEFAULT_MODEL) -> None:
    """Write the Space's files into `folder`."""
    for there, content in contents_of(unit, model).items():
        target = folder / there
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def content_hash(contents: Mapping[str, bytes]) -> str:
    """Sixteen hex digits that change with any path or content."""
    digest = hashlib.sha256()
    for there, content in contents.items():
        digest.update(f"{there}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def check_known_to_git(unit: Unit) -> None:
    """Raises SyncError for a file of the Space that a git checkout does not track; nothing where there is no git."""
    if not (CHECKOUT / ".git").exists() or shutil.which("git") is None:
        return
    listing = ["git", "-C", str(CHECKOUT), "ls-files", "-z"]
    listed = subprocess.run(listing, capture_output=True, check=False)
    if listed.returncode:
        raise SyncError(f"git cannot list the files of {CHECKOUT}: {listed.stderr.decode(errors='replace').strip()}")
    tracked = set(listed.stdout.decode(errors="surrogateescape").split("\0"))
    for path in files_of(unit).values():
        if (name := str(path.relative_to(CHECKOUT))) not in tracked:
            raise SyncError(f"{name} would be pushed, but git does not know it; git add it, or move it away")


def is_in_a_package(folder: Path) -> bool:
    """Whether it lies in this project's code, with which it could be pushed."""
    packages = (CHECKOUT / name for name in (_CODE_OF_ALL, VLLM.package, ENV.package, "trainer_box"))
    return any(folder.resolve().is_relative_to(package) for package in packages)


def _is_part(path: Path, unit: Unit) -> bool:
    """Whether a file in a package's folder is part of it, and not something that lies there."""
    place = path.relative_to(CHECKOUT)
    if not path.is_file() or any(part.startswith((".", "__pycache__")) for part in place.parts):
        return False
    if place == Path(unit.package, unit.data) or (place.parent == _WORDS and place.suffix == ".txt"):
        return True
    folders = [CHECKOUT / folder for folder in place.parents if folder.parts]
    return place.suffix in _CODE and all((folder / "__init__.py").is_file() for folder in folders)
