"""What units say about themselves: one GET with a deadline, the answer as plain data or the reason there is none.

Knows addresses and keys, not what the fields of an answer mean.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from shared import health, strict_json
from shared.auth import auth_headers
from shared.types import Json

TIMEOUT_S = 4.0
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Answer:
    """`problem` is empty when the unit answered; then `document` is what it said."""

    document: Json = field(default_factory=dict)
    problem: str = ""


class Asked(Protocol):
    """Whoever can be asked; never raises."""

    def ask(self) -> Answer: ...


class Unit:
    """One status page. `key` is the bearer key, `hub_token` what the proxy of a private Space asks for."""

    def __init__(self, url: str, path: str, key: str = "", hub_token: str = "") -> None:
        self._headers = auth_headers(url, key, hub_token)
        self._address = url.rstrip("/") + path

    def ask(self) -> Answer:
        try:
            response = health.get(self._address, self._headers, TIMEOUT_S)
        except TimeoutError:
            return Answer(problem=f"it gave no whole answer within {TIMEOUT_S:.0f} s")
        except httpx.HTTPError as error:
            return Answer(problem=f"it cannot be reached ({str(error) or type(error).__name__})")
        if response.status_code in (401, 403):
            return Answer(problem=f"it refused the key (HTTP {response.status_code})")
        if response.status_code != 200:
            return Answer(problem=f"it answered HTTP {response.status_code}")
        return _document(response.content)


class Questions:
    """Asks units at once, each on a thread that no process waits for when it ends. A unit whose last question is still
    open is not asked again."""

    def __init__(self, units: Mapping[str, Asked]) -> None:
        self._units = units
        self._threads: dict[str, threading.Thread] = {}
        self._answers: dict[str, Answer] = {}

    def ask(self) -> None:
        for name in self._units:
            if name not in self._threads or not self._threads[name].is_alive():
                self._answers.pop(name, None)
                self._threads[name] = threading.Thread(target=self._put, args=(name,), daemon=True)
                self._threads[name].start()

    def answers(self) -> dict[str, Answer]:
        """Once all are there, or after 5 s."""
        end = time.monotonic() + PATIENCE_S
        for thread in self._threads.values():
            thread.join(max(0.0, end - time.monotonic()))
        silent = Answer(problem=f"it gave no answer within {PATIENCE_S:.0f} s")
        return {name: self._answers.get(name, silent) for name in self._units}

    def _put(self, name: str) -> None:
        self._answers[name] = self._units[name].ask()


def _document(raw: bytes) -> Answer:
    try:
        document = strict_json.parse(raw)
    except ValueError:
        return Answer(problem="its answer is not JSON")
    return Answer(document) if isinstance(document, dict) else Answer(problem="its answer is not a JSON object")
