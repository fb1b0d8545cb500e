"""What a worker's receiver answers, as plain data that crosses processes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Answer:
    def to_wire(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Progress(Answer):
    """How far staging is. `error_kind` is the name of the error's class, `fingerprint` of what is staged.

    `places` counts the tensors that are written in place, and those that are reloaded by vLLM.
    """

    state: Literal["idle", "working", "ready", "failed"]
    error: str = ""
    error_kind: str = ""
    fingerprint: str = ""
    places: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed(Answer):
    """With an `error`, part of the values may have been written."""

    error: str = ""
    milliseconds: float = 0.0


@dataclass(frozen=True)
class Verified(Answer):
    """The fingerprint of the live model; with an `error` it could not be told."""

    fingerprint: str = ""
    error: str = ""


@dataclass(frozen=True)
class Audited(Answer):
    """`wrong` names tensors that are not what was verified before."""

    state: Literal["working", "done"]
    wrong: tuple[str, ...] = ()
