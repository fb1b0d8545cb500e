"""The Spaces' own keys: from the environment, else from a file that only its owner can read, else made and kept there.

They are what the trainer sends; a shell reads the file, which therefore holds what is deployed, and whose other lines
are left as they are. Never printed.
"""

import os
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path

from shared.errors import SyncError
from shared.health import Report
from trainer_box.deploy.tokens import checked

NAMES = ("VLLM_API_KEY", "ENV_API_KEY")
_FOLDER = Path(".config", "async-rl-spaces")
_BYTES = 32
_OWNER_ONLY = 0o600
_LINE = re.compile(rf"(\s*(?:export\s+)?)({'|'.join(NAMES)})=(.*)")
_OURS = re.compile(rf"\s*[^#]*\b({'|'.join(NAMES)})\b")
_VALUE = re.compile(r"""(?:'[^']*'|"[^"$`\\!]*"|[^\s'"$`\\;&|<>()#*?\[\]{}!~])*\s*(?:\s#.*)?""")


def place_of(namespace: str) -> Path:
    """Raises SyncError."""
    try:
        home = Path(os.environ["HOME"]) if "HOME" in os.environ else Path.home()
    except RuntimeError:  # this user has none
        home = Path()
    if not home.is_absolute():
        raise SyncError("HOME is not set; set it to your home folder, in which the keys of the Spaces are kept")
    return home / _FOLDER / f"{namespace}.env"


def load_or_make(place: Path, environment: Mapping[str, str], report: Report) -> dict[str, str]:
    """Both keys, which the file then holds; none is made when the environment holds both. Raises SyncError."""
    given = {name: checked(name, environment[name]) for name in NAMES if environment.get(name)}
    try:
        lines = _read(place)
        if lines is None and len(given) == len(NAMES):
            return given
        kept = _kept(lines or [], place)
        for name in (name for name in given if kept.get(name, given[name]) != given[name]):
            report(f"{name} of the environment replaces the one in {place}")
        made = {name: secrets.token_urlsafe(_BYTES) for name in NAMES if not kept.get(name)}
        keys = {**made, **kept, **given}
        if keys != kept:
            _write(place.resolve(), _with(lines or [], kept, keys))
    except OSError as error:
        raise SyncError(
            f"the keys of the Spaces cannot be kept in {place}: {error.strerror}; make that possible, or set "
            f"{' and '.join(NAMES)} in the environment"
        ) from error
    return {name: checked(name, keys[name]) for name in NAMES}


def _read(place: Path) -> list[str] | None:
    if not place.exists():
        return None
    place.chmod(_OWNER_ONLY)
    try:
        return place.read_bytes().decode().rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise SyncError(f"{place} is not a text in UTF-8; mend it or move it away") from error


def _kept(lines: list[str], place: Path) -> dict[str, str]:
    """The keys that a shell would read in these lines. Raises SyncError where that is not sure."""
    found = {}
    for number, line in enumerate(lines, 1):
        if (parts := _LINE.fullmatch(line)) and _VALUE.fullmatch(parts[3]):
            found[parts[2]] = "".join(shlex.split(parts[3], comments=True))
        elif ours := _OURS.match(line):
            raise SyncError(f"line {number} of {place} is not {ours[1]}=KEY; mend it, or move the file away")
    return {name: value for name, value in found.items() if value}


def _with(lines: list[str], kept: Mapping[str, str], keys: Mapping[str, str]) -> str:
    """The file with these keys: lines that hold others are replaced, missing ones come last, the rest stays."""
    changed = {name: value for name, value in keys.items() if kept.get(name) != value}
    written, missing = [], dict(changed)
    for line in lines:
        parts = _LINE.fullmatch(line)
        if parts and parts[2] in changed:
            line = f"{parts[1]}{parts[2]}={shlex.quote(changed[parts[2]])}"
            missing.pop(parts[2], None)
        written.append(line)
    written += [f"{name}={shlex.quote(value)}" for name, value in missing.items()]
    return "".join(f"{line}\n" for line in written if line or lines != [""])


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = place.with_suffix(".new")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(partial, place)
