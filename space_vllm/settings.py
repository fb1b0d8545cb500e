"""The vLLM Space's settings: read from the environment once, checked, and never printed with their secrets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.types import RUN_ID

DEFAULT_PORT = 7860
DEFAULT_AUDIT_S = 60.0


class SettingError(Exception):
    """A variable of the environment is missing or malformed; the message says which and what to do."""


@dataclass(frozen=True)
class Settings:
    """`run_id` None follows the newest run of the bucket, and `hf_token` None reads public repositories only.

    `audit_s` is the period, in seconds, of the recounts of the live weights; 0 for none.
    """

    bucket: str
    model: str
    served_model_name: str
    port: int
    host: str
    api_key: str = field(repr=False)
    hf_token: str | None = field(repr=False)
    run_id: str | None = None
    audit_s: float = DEFAULT_AUDIT_S

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Raises SettingError. An empty variable counts as not set."""
        model = _required(environment, "MODEL", "a folder with a model, or a model id of the Hub")
        return cls(
            bucket=_required(environment, "BUCKET", "'user/name', or 'local:/path' for a folder"),
            model=model,
            served_model_name=environment.get("SERVED_MODEL_NAME") or model,
            port=_port(environment.get("PORT") or str(DEFAULT_PORT)),
            host=environment.get("HOST") or "0.0.0.0",
            api_key=_required(environment, "VLLM_API_KEY", "the key that the trainer sends as a bearer token"),
            hf_token=environment.get("HF_TOKEN") or None,
            run_id=_run_id(environment.get("RUN_ID") or None),
            audit_s=_audit_s(environment.get("AUDIT_SECONDS") or str(DEFAULT_AUDIT_S)),
        )


def _required(environment: Mapping[str, str], name: str, meaning: str) -> str:
    if not (value := environment.get(name, "")):
        raise SettingError(f"{name} is not set: set it to {meaning}.")
    return value


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise SettingError(f"PORT is {text!r}: set it to a number from 1 to 65535.")
    return int(text)


def _run_id(text: str | None) -> str | None:
    if text is not None and not RUN_ID.fullmatch(text):
        raise SettingError(f"RUN_ID is {text!r}, which no run can have: unset it to follow the newest run.")
    return text


def _audit_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise SettingError(f"AUDIT_SECONDS is {text!r}: set it to a number of seconds, 0 or more.")
    return seconds
