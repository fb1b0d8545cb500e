"""Which release of this project a unit is, in which Space it runs, and under which names the units are on the Hub.

Knows names only; who asks for them, and what follows from a difference, is for the callers.
"""

from collections.abc import Mapping

VERSION = "0.1.0"
"""As in pyproject.toml; written here, since a Space runs from copied files."""

VLLM_SPACE, ENV_SPACE = "async-rl-vllm", "async-rl-env"
BUCKET = "async-rl-weights"


def identity(environment: Mapping[str, str]) -> dict[str, str | None]:
    """What a unit's status tells of itself; `space` is the Space's id on the Hub, None elsewhere."""
    return {"project": VERSION, "space": environment.get("SPACE_ID") or None}


def default_bucket(namespace: str) -> str:
    """Where the Spaces of a user or an organisation look for weights when nothing else is set."""
    return f"{namespace}/{BUCKET}"
