"""The vLLM Space's settings: read from the environment once, checked, and never printed with their secrets."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

from shared.auth import fits_a_header
from shared.identity import default_bucket
from shared.login import Login
from shared.types import RUN_ID

T = TypeVar("T")

DEFAULT_PORT = 7860
DEFAULT_AUDIT_S = 60.0


class Place(Enum):
    """Where something can be put right."""

    SETTINGS = auto()
    TOKENS = auto()
    BUCKET = auto()
    MODEL = auto()


class SettingError(Exception):
    """A setting is missing or malformed, or leads nowhere; the message says which and what to do.

    One that `may_pass` is not against the setting: the Hub does not answer now.
    """

    def __init__(self, sentence: str, *places: Place, may_pass: bool = False) -> None:
        super().__init__(sentence)
        self.places = places or (Place.SETTINGS,)
        self.may_pass = may_pass


@dataclass(frozen=True)
class Settings:
    """`run_id` None follows the newest run of the bucket, and `hf_token` None reads public repositories only.

    `audit_s` is the period, in seconds, of the recounts of the live weights; 0 for none. `login` is the monitor's.
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
    login: Login | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Raises SettingError. An empty variable counts as not set."""
        settings, problems = cls.read(environment)
        if problems:
            raise problems[0]
        return settings

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "tuple[Settings, list[SettingError]]":
        """With everything that is wrong, and what stands in its place is empty, or the default."""
        get, read = environment.get, _Reader(environment)
        model = read(_model, "")
        settings = cls(
            bucket=read(_bucket, ""),
            model=model,
            served_model_name=get("SERVED_MODEL_NAME") or model,
            port=read(_port, DEFAULT_PORT),
            host=get("HOST") or "0.0.0.0",
            api_key=read(_api_key, ""),
            hf_token=read(_hf_token, None),
            run_id=read(_run_id, None),
            audit_s=read(_audit_s, DEFAULT_AUDIT_S),
            login=read(_login, None),
        )
        return settings, read.problems


class _Reader:
    """Reads one setting after the other, and keeps what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.problems: list[SettingError] = []
        self._environment = environment

    def __call__(self, parse: Callable[[Mapping[str, str]], T], instead: T) -> T:
        try:
            return parse(self._environment)
        except SettingError as error:
            self.problems.append(error)
            return instead


def _required(environment: Mapping[str, str], name: str, meaning: str) -> str:
    if not (value := environment.get(name, "")):
        raise SettingError(f"{name} is not set: set it to {meaning}.")
    return value


def _model(environment: Mapping[str, str]) -> str:
    return _required(environment, "MODEL", "a folder with a model, or a model id of the Hub")


def _bucket(environment: Mapping[str, str]) -> str:
    """On a Space, the bucket of whom it belongs to, so that a duplicate never follows another person's."""
    if not environment.get("BUCKET") and (author := environment.get("SPACE_AUTHOR_NAME")):
        return default_bucket(author)
    return _required(environment, "BUCKET", "'user/name', or 'local:/path' for a folder")


def _api_key(environment: Mapping[str, str]) -> str:
    return _fit_for_a_header(
        "VLLM_API_KEY", _required(environment, "VLLM_API_KEY", "the key that the trainer sends as a bearer token")
    )


def _hf_token(environment: Mapping[str, str]) -> str | None:
    """On a Space nothing is readable without one: its bucket is private."""
    token = environment.get("HF_TOKEN") or None
    if token is None and "SPACE_ID" in environment:
        raise SettingError(
            "HF_TOKEN is not set: make a token that may read the bucket, and set it as a secret.",
            Place.TOKENS,
            Place.SETTINGS,
        )
    return token and _fit_for_a_header("HF_TOKEN", token)


def _fit_for_a_header(name: str, secret: str) -> str:
    if not fits_a_header(secret) or " " in secret:
        raise SettingError(f"{name} holds a space, a line break or a letter that no key has: set it anew.")
    return secret


def _port(environment: Mapping[str, str]) -> int:
    text = environment.get("PORT") or str(DEFAULT_PORT)
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 1 << 16:
        raise SettingError(f"PORT is {text!r}: set it to a number from 1 to 65535.")
    return int(text)


def _run_id(environment: Mapping[str, str]) -> str | None:
    text = environment.get("RUN_ID") or None
    if text is not None and not RUN_ID.fullmatch(text):
        raise SettingError(f"RUN_ID is {text!r}, which no run can have: unset it to follow the newest run.")
    return text


def _login(environment: Mapping[str, str]) -> Login | None:
    try:
        return Login.from_environment(environment)
    except ValueError as error:
        raise SettingError(f"{error}.") from error


def _audit_s(environment: Mapping[str, str]) -> float:
    text = environment.get("AUDIT_SECONDS") or str(DEFAULT_AUDIT_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise SettingError(f"AUDIT_SECONDS is {text!r}: set it to a number of seconds, 0 or more.")
    return seconds
