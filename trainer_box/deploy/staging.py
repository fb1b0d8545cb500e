"""Which files a Space consists of, and how they are laid out: the one list of what is ever pushed.

A Space's folder holds its Dockerfile, its card as README.md, the lock of its dependencies, its package, and what that
needs of `shared`. Only files of known kinds are taken, so that nothing private that lies beside them is. Knows nothing
of the Hub.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SyncError
from trainer_box.deploy.needed import needed

CHECKOUT = Path(__file__).resolve().parents[2]
_KINDS = {".py", ".css", ".html", ".js", ".toml", ".txt", ".yaml"}
_CODE_OF_ALL = "shared"


@dataclass(frozen=True)
class Unit:
    """What runs in one Space: `package` is also the name of its folder.

    `status` is the path at which it tells what it is, with its key, which the secret `key` holds.
    """

    package: str
    dockerfile: str
    status: str
    key: str
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


VLLM = Unit("space_vllm", "Dockerfile.vllm", "/weights/status", "VLLM_API_KEY")
_ENV_LICENCES = ("LICENSE", "shared/words/LICENSE")
ENV = Unit("space_env", "Dockerfile.env", "/status", "ENV_API_KEY", _ENV_LICENCES)


def files_of(unit: Unit) -> dict[str, Path]:
    """Path in the Space to file here, sorted. Raises SyncError where the checkout lacks one."""
    found = {there: CHECKOUT / here for there, here in unit.renamed.items()}
    if missing := [path for path in found.values() if not path.is_file()]:
        raise SyncError(
            f"{missing[0]} is not there; the Spaces are made from a checkout of the repository, so run this in one"
        )
    code = {*(CHECKOUT / unit.package).rglob("*"), *needed(_CODE_OF_ALL, unit.package, CHECKOUT)}
    found.update({str(path.relative_to(CHECKOUT)): path for path in code if _is_code(path)})
    for moved in set(unit.renamed.values()) - set(unit.renamed):
        found.pop(moved, None)
    return dict(sorted(found.items()))


def stage(unit: Unit, folder: Path) -> None:
    """Write the Space's files into `folder`, anew."""
    if folder.exists():
        shutil.rmtree(folder)
    for there, here in files_of(unit).items():
        target = folder / there
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(here, target)


def content_hash(files: dict[str, Path]) -> str:
    """Sixteen hex digits that change with any path or content."""
    digest = hashlib.sha256()
    for there, here in files.items():
        digest.update(f"{there}\0{hashlib.sha256(here.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _is_code(path: Path) -> bool:
    is_hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(CHECKOUT).parts)
    return path.is_file() and not is_hidden and path.suffix in _KINDS
