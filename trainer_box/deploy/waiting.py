"""Waits until a Space answers that it is healthy, and tells how far it is; a stage that leads nowhere ends the wait.

The Hub's word that a Space runs is not enough: its own `/health` has to be 200. What the Hub says right after a change
may be about the time before it, so that a bad stage is believed when it stays. Knows nothing of what a Space does.
"""

import time
from dataclasses import dataclass

from shared import health
from shared.auth import auth_headers
from shared.errors import SyncError
from shared.health import Report
from trainer_box.deploy.failures import is_no_capacity, no_capacity
from trainer_box.deploy.hub import Hub, Runtime, Space
from trainer_box.deploy.plan import SpacePlan

_POLL_S = 5.0
_LOOKS = 4  # in a row, at a stage that leads nowhere
_RESTARTED = ("PAUSED", "STOPPED", "RUNTIME_ERROR")
_HOPELESS = (*_RESTARTED, "BUILD_ERROR", "CONFIG_ERROR", "NO_APP_FILE", "DELETING")


@dataclass(frozen=True)
class Waiting:
    """`token` is what the proxy of a private Space asks for."""

    hub: Hub
    token: str | None
    deadline_s: float
    report: Report

    def until_healthy(self, plan: SpacePlan) -> str:
        """The Space's address. Raises SyncError when it fails, or after the deadline."""
        address = self._address(plan)
        headers = auth_headers(address, None, self.token)
        end = time.monotonic() + self.deadline_s
        told, bad = "", 0
        while True:
            runtime = self.hub.runtime(plan.repo_id)
            problem = health.problem_of(address, headers)
            if runtime.stage == "RUNNING" and not problem:
                self.report(f"{plan.repo_id}: healthy at {address}")
                return address
            bad = bad + 1 if runtime.stage in _HOPELESS else 0
            self._mend(plan, runtime, bad)
            if (state := f"{runtime.stage}, /health: {problem or 'HTTP 200'}") != told:
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

    def _mend(self, plan: SpacePlan, runtime: Runtime, bad: int) -> None:
        """Restart a Space that does not run, once; raise SyncError when that does not help."""
        if is_no_capacity(runtime.problem):
            raise no_capacity(f"{plan.repo_id} cannot start on {plan.hardware}", runtime.problem)
        if bad == 1 and runtime.stage in _RESTARTED:
            self.report(f"{plan.repo_id}: it is in stage {runtime.stage}; restarting it")
            self.hub.restart(plan.repo_id)
        if bad >= _LOOKS:
            raise SyncError(_hopeless(plan.repo_id, runtime))


def _hopeless(repo_id: str, runtime: Runtime) -> str:
    build = " --build" if runtime.stage == "BUILD_ERROR" else ""
    reason = f" ({runtime.problem})" if runtime.problem else ""
    return (
        f"{repo_id} is in stage {runtime.stage}{reason}; hf spaces logs {repo_id}{build} tells why, and "
        f"hf spaces restart {repo_id} starts it again"
    )
