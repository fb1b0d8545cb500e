"""Files that could not be had, or are not what they should be: each is read again, after a pause that grows.

Knows paths, times and sentences, not what is in a file.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

_FIRST_S, _LONGEST_S = 5.0, 300.0


@dataclass(frozen=True)
class _Failure:
    """`problem` is empty for a file that is listed, but was not there when it was read."""

    problem: str
    pause_s: float
    due: float


class Again:
    """Times are seconds of any clock."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}

    def failed(self, path: str, problem: str, now: float) -> None:
        before = self._failures.get(path)
        pause_s = min(2 * before.pause_s, _LONGEST_S) if before else _FIRST_S
        self._failures[path] = _Failure(problem, pause_s, now + pause_s)

    def mended(self, path: str) -> None:
        self._failures.pop(path, None)

    def keep(self, listed: Collection[str]) -> None:
        """What is not among them has been deleted."""
        self._failures = {path: failure for path, failure in self._failures.items() if path in listed}

    def is_due(self, path: str, now: float) -> bool:
        """So is a file that has never failed."""
        failure = self._failures.get(path)
        return failure is None or now >= failure.due

    def is_damaged(self, path: str) -> bool:
        return path in self._failures and bool(self._failures[path].problem)

    def problems(self) -> Iterable[str]:
        return (failure.problem for failure in self._failures.values() if failure.problem)
