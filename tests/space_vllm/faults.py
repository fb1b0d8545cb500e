"""Faults to plant in a live server: a small file says which, and how often each is still to happen.

Also the one that is planted beside the engine's client, as middleware. The worker's are in `faulty_worker`.
"""

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

_VARIABLE = "PLANTED_FAULTS"
ARGUMENTS = (
    *("--worker-extension-cls", "tests.space_vllm.faulty_worker.FaultyExtension"),
    *("--middleware", "tests.space_vllm.faults.StickyCache"),
)


class Plan:
    """Read and written by tests and by the server's processes, never by two of them at once."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "faults.json"
        self.environment = {_VARIABLE: str(folder)}

    def arm(self, **faults: int) -> None:
        """How often each is to happen; all others are not."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(faults))
        draft.replace(self._file)

    def left(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self._file.read_text()) if self._file.exists() else {}
        return {name: times for name, times in found.items() if times}

    def take(self, name: str) -> bool:
        """Whether the fault is to happen now."""
        left = self.left()
        if name in left:
            self.arm(**{**left, name: left[name] - 1})
        return name in left

    def take_all(self, name: str) -> int:
        """How often it is still to happen, which it then is not any more."""
        left = self.left()
        if name in left:
            self.arm(**{**left, name: 0})
        return left.get(name, 0)


def from_environment() -> Plan:
    return Plan(Path(os.environ[_VARIABLE]))


class StickyCache:
    """`sticky_cache`: a cache that says it was cleared and was not."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._is_planted = False

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not self._is_planted:
            _keep_cache(scope["app"].state.engine_client, from_environment())
            self._is_planted = True
        await self._app(scope, receive, send)


def _keep_cache(client: Any, plan: Plan) -> None:
    pause, reset = client.pause_generation, client.reset_prefix_cache

    async def pause_generation(*, mode: str, clear_cache: bool) -> None:
        await pause(mode=mode, clear_cache=clear_cache and not plan.take("sticky_cache"))

    async def reset_prefix_cache(*arguments: bool, **named: bool) -> bool:
        return plan.take("sticky_cache") or await reset(*arguments, **named)

    client.pause_generation, client.reset_prefix_cache = pause_generation, reset_prefix_cache
