"""The Spaces' own keys: from the environment, else from a file that only its owner can read, else made and kept there.

They are what the trainer sends; the file is in a form that a shell can read. Never printed.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from shared.auth import fits_a_header
from shared.errors import SyncError

NAMES = ("VLLM_API_KEY", "ENV_API_KEY")
_FOLDER = Path(".config", "async-rl-spaces")
_BYTES = 32
_OWNER_ONLY = 0o600


def place_of(namespace: str, home: Path) -> Path:
    return home / _FOLDER / f"{namespace}.env"


def load_or_make(place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Both keys; what the environment holds comes first and is written nowhere. Raises SyncError."""
    try:
        kept = _read(place)
        made = {name: kept.get(name) or secrets.token_urlsafe(_BYTES) for name in NAMES if not environment.get(name)}
        if made.keys() - kept.keys():
            _write(place, {**kept, **made})
    except OSError as error:
        raise SyncError(
            f"the keys of the Spaces cannot be kept in {place}: {error.strerror}; make that possible, or set "
            f"{' and '.join(NAMES)} in the environment"
        ) from error
    return {name: checked(name, environment.get(name) or made[name]) for name in NAMES}


def checked(name: str, secret: str) -> str:
    """Raises SyncError, without it, for a secret that no HTTP header can hold."""
    if not fits_a_header(secret):
        raise SyncError(f"{name} holds a space, a line break or another character that no key has; set it anew")
    return secret


def _read(place: Path) -> dict[str, str]:
    if not place.exists():
        return {}
    place.chmod(_OWNER_ONLY)
    lines = [line.partition("=") for line in place.read_text().splitlines()]
    return {name: value for name, _, value in lines if name in NAMES and value}


def _write(place: Path, keys: Mapping[str, str]) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = place.with_suffix(".new")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in keys.items())
    os.replace(partial, place)
