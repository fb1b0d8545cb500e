"""Waits until a Space answers that it is healthy, and tells how far it is; a stage that leads nowhere ends the wait.

The Hub's word that a Space runs is not enough: what runs has to be what was put there, its own `/health` has to be
200, and its status that of this release. What the Hub says right after a change may be about the time before it, so
that a bad stage is believed when it stays. Knows nothing of what a Space does.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from shared import health, strict_json
from shared.auth import auth_headers
from shared.bucket.failures import plain
from shared.errors import SyncError
from shared.health import Report
from shared.identity import VERSION
from trainer_box.deploy.apply import Applied
from trainer_box.deploy.failures import is_no_capacity, no_capacity
from trainer_box.deploy.hub import Hub, Runtime, Space
from trainer_box.deploy.plan import SpacePlan

_POLL_S = 5.0
_LOOKS = 4  # in a row, at a stage that leads nowhere
_GRACE_S = 60.0  # after a change, in which the Hub may not have noticed it yet
_RUNNING = "RUNNING"
_RESTARTED = ("PAUSED", "STOPPED", "RUNTIME_ERROR")
_HOPELESS = (*_RESTARTED, "BUILD_ERROR", "CONFIG_ERROR", "NO_APP_FILE", "DELETING")


@dataclass
class _Seen:
    """What was seen of one Space: looks in a row at a bad stage, whether it was restarted and got going after that,
    and whether it did something else than run since the change."""

    bad: int = 0
    restarted: bool = False
    got_going: bool = False
    left_running: bool = False

    def look(self, stage: str) -> None:
        self.left_running |= stage != _RUNNING
        self.bad = self.bad + 1 if stage in _HOPELESS else 0
        self.got_going |= self.restarted and not self.bad


@dataclass(frozen=True)
class Waiting:
    """`token` is what the proxy of a private Space asks for, `keys` the Spaces' own by the names of their secrets."""

    hub: Hub
    token: str | None
    deadline_s: float
    report: Report
    keys: Mapping[str, str] = field(default_factory=dict)

    def until_healthy(self, plan: SpacePlan, applied: Applied) -> str:
        """The Space's address. Raises SyncError when it fails, or after the deadline."""
        address = self._address(plan)
        end = time.monotonic() + self.deadline_s
        told, seen = "", _Seen()
        while True:
            runtime = self.hub.runtime(plan.repo_id)
            seen.look(runtime.stage)
            before = _of_before(runtime, applied, seen)
            problem = self._problem(plan, address)
            if runtime.stage == _RUNNING and not before and not problem:
                self.report(f"{plan.repo_id}: healthy at {address}")
                return address
            self._mend(plan, runtime, seen)
            if (state := f"{runtime.stage}{before}, /health: {problem or 'HTTP 200'}") != told:
                self.report(f"{plan.repo_id}: {state}")
                told = state
            if time.monotonic() > end:
                raise SyncError(
                    f"{plan.repo_id} is not healthy after {self.deadline_s:.0f} s ({state}); look at {address} and at "
                    f"hf spaces logs {plan.repo_id}, then run the same command again"
                )
            time.sleep(min(_POLL_S, self.deadline_s))

    def _address(self, plan: SpacePlan) -> str:
        space: Space | None = self.hub.space(plan.repo_id)
        if space is None or not space.host:
            raise SyncError(f"the Hub tells no address of {plan.repo_id}; run the same command again in a minute")
        return space.host.rstrip("/")

    def _problem(self, plan: SpacePlan, address: str) -> str:
        """Empty when the unit is well and is this release of it."""
        problem = health.problem_of(address, auth_headers(address, None, self.token))
        if problem:
            return problem
        headers = auth_headers(address, self.keys.get(plan.unit.key), self.token)
        return _of_another(f"{address}{plan.unit.status}", plan.unit.status, headers)

    def _mend(self, plan: SpacePlan, runtime: Runtime, seen: _Seen) -> None:
        """Restart a Space that does not run, once in all; raise SyncError when that does not help."""
        if seen.bad >= _LOOKS or (seen.bad and seen.got_going):
            if is_no_capacity(runtime.problem):
                raise no_capacity(f"{plan.repo_id} cannot start on {plan.hardware}", runtime.problem)
            raise SyncError(_hopeless(plan.repo_id, runtime))
        if seen.bad and not seen.restarted and runtime.stage in _RESTARTED:
            self.report(f"{plan.repo_id}: it is in stage {runtime.stage}; restarting it")
            self.hub.restart(plan.repo_id)
            seen.restarted = True


def _of_before(runtime: Runtime, applied: Applied, seen: _Seen) -> str:
    """Why what runs cannot be what was put there, as far as the Hub tells; empty when it may be."""
    if runtime.commit and applied.commit and runtime.commit != applied.commit:
        return f" (commit {runtime.commit[:8]}, not yet {applied.commit[:8]})"
    is_told = runtime.commit and applied.is_new
    if is_told or applied.changed_at is None or seen.left_running:
        return ""
    return "" if time.monotonic() > applied.changed_at + _GRACE_S else " (as before the change)"


def _of_another(url: str, path: str, headers: Mapping[str, str]) -> str:
    """Why what is well is not this release of this project; empty when it is."""
    try:
        answer = health.get(url, headers)
        status = strict_json.parse(answer.content)
    except TimeoutError:
        return f"HTTP 200, {path}: no answer within {health.ANSWER_S:.0f} s"
    except httpx.HTTPError as error:
        return f"HTTP 200, {path}: {str(error) or type(error).__name__}"
    except ValueError:
        status = None
    if answer.status_code != 200:
        return f"HTTP 200, {path}: HTTP {answer.status_code}"
    if not isinstance(status, dict) or "project" not in status:
        return f"HTTP 200, {path}: not an answer of this project"
    release = status["project"]
    return "" if release == VERSION else f"HTTP 200, {path}: release {str(release)[:20]}, not {VERSION}"


def _hopeless(repo_id: str, runtime: Runtime) -> str:
    build = " --build" if runtime.stage == "BUILD_ERROR" else ""
    reason = f" ({plain(runtime.problem)})" if runtime.problem else ""
    return (
        f"{repo_id} is in stage {runtime.stage}{reason}; hf spaces logs {repo_id}{build} tells why, and "
        f"hf spaces restart {repo_id} starts it again"
    )
