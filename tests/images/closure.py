"""What a requirement brings with it, by the metadata of what is installed here. Knows no index."""

import importlib.metadata
from collections.abc import Iterable

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(roots: Iterable[str]) -> dict[str, str]:
    """Name to version, of the requirements and all that those need. What is not installed here is left out."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        waiting += _needs(distribution, requirement.extras or {""})
    return found


def _needs(distribution: importlib.metadata.Distribution, extras: Iterable[str]) -> list[Requirement]:
    needs = [Requirement(text) for text in distribution.requires or []]
    return [
        need
        for need in needs
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)
    ]
