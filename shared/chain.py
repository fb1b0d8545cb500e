"""Which files lead from what a receiver holds to the version it wants. Pure: manifests come from the caller."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import ChainError
from shared.types import Manifest


@dataclass(frozen=True)
class Held:
    """A verified version that a receiver has. Equal numbers with another fingerprint are another version."""

    version: int
    fingerprint: str


def find_path(target: Manifest, held: Held | None, manifest_of: Callable[[int], Manifest]) -> list[Manifest]:
    """The versions to load in order, ending with `target`: deltas on `held` where they connect, else from an anchor.

    Empty when `target` is held. Raises ChainError when nothing leads there.
    """
    path: list[Manifest] = []
    step = target
    while held is None or (step.version, step.fingerprint) != (held.version, held.fingerprint):
        if step.kind == "anchor" and not step.files:
            raise ChainError(
                f"version {target.version} builds on version {step.version}, which is not in the bucket: load the "
                f"run's base model (fingerprint {step.fingerprint}) and catch up from there"
            )
        path.insert(0, step)
        if step.kind == "anchor":
            break
        step = _base(step, manifest_of)
    return path


def _base(step: Manifest, manifest_of: Callable[[int], Manifest]) -> Manifest:
    if step.base_version is None:
        raise ChainError(f"delta {step.version} names no base version")
    base = manifest_of(step.base_version)
    if base.fingerprint != step.base_fingerprint:
        raise ChainError(
            f"delta {step.version} is based on version {base.version} with fingerprint {step.base_fingerprint}, "
            f"but the bucket's version {base.version} has {base.fingerprint}"
        )
    return base
