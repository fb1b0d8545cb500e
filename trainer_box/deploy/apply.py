"""Brings one Space to its plan, changing only what differs, so that it can be run again and again.

A Space restarts whenever a setting changes. Of a secret the Hub tells only the description, which therefore holds the
beginning of a hash of the value. Knows nothing of whether the Space then works.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from shared.errors import SyncError
from shared.health import Report
from shared.identity import VERSION
from trainer_box.deploy import staging
from trainer_box.deploy.hardware import FREE
from trainer_box.deploy.hub import Hub, Space
from trainer_box.deploy.plan import SpacePlan


@dataclass(frozen=True)
class Applied:
    """What a Space should run now. `is_new`: this commit was made just now; `changed_at` is when something was last
    changed in it (monotonic seconds), None where nothing was."""

    commit: str
    is_new: bool
    changed_at: float | None


def apply(plan: SpacePlan, hub: Hub, secrets: Mapping[str, str], report: Report) -> Applied:
    """`secrets` has the values, by the names that the plan gives. Raises SyncError."""
    found = hub.space(plan.repo_id)
    if found is None:
        report(f"{plan.repo_id}: making it, {_visible(plan.private)}")
        hub.create_space(plan.repo_id, plan.private, plan.hardware, plan.sleep_s)
        found = _expect(hub.space(plan.repo_id), plan)
    _check(found, plan, hub, report)
    changed = _settings(plan, hub, secrets, report)
    changed |= _machine(plan, hub, report)
    commit = _files(plan, hub, found, report)
    is_new = commit != found.commit
    return Applied(commit, is_new, time.monotonic() if is_new or changed else None)


def described(value: str) -> str:
    """The description of a secret: enough to see that it is another one, too little to find it."""
    return f"sha256 {hashlib.sha256(value.encode()).hexdigest()[:8]}; set by trainer_box.deploy"


def _expect(space: Space | None, plan: SpacePlan) -> Space:
    if space is None:
        raise SyncError(f"{plan.repo_id} was made, but the Hub does not have it yet; run the same command again")
    return space


def _check(space: Space, plan: SpacePlan, hub: Hub, report: Report) -> None:
    if space.sdk != "docker":
        raise SyncError(
            f"{plan.repo_id} is there already as a Space of kind {space.sdk!r}, not docker; rename or delete it, or "
            "choose another --namespace"
        )
    if plan.private and not space.private:
        report(f"{plan.repo_id}: it is public (hf repos settings {plan.repo_id} --type space --private changes that)")
    if plan.private:
        return
    if space.private:
        raise SyncError(f"{plan.repo_id} is private, and a template is public; make it so on the Hub, or delete it")
    if held := hub.secrets(plan.repo_id):
        raise SyncError(
            f"{plan.repo_id} holds secrets ({', '.join(sorted(held))}), and a template has none; delete them with "
            "hf spaces secrets delete"
        )


def _settings(plan: SpacePlan, hub: Hub, secrets: Mapping[str, str], report: Report) -> bool:
    """Whether something was changed, as below."""
    changed = False
    there = hub.secrets(plan.repo_id) if plan.secrets else {}
    for name, source in plan.secrets.items():
        if there.get(name) != (description := described(secrets[source])):
            report(f"{plan.repo_id}: secret {name}")
            hub.set_secret(plan.repo_id, name, secrets[source], description)
            changed = True
    set_already = hub.variables(plan.repo_id) if plan.variables else {}
    for name, value in plan.variables.items():
        if set_already.get(name) != value:
            report(f"{plan.repo_id}: variable {name} = {value}")
            hub.set_variable(plan.repo_id, name, value)
            changed = True
    return changed


def _machine(plan: SpacePlan, hub: Hub, report: Report) -> bool:
    """A Space that is planned on free hardware keeps what somebody chose for it."""
    if plan.hardware in (None, FREE):
        return False
    runtime = hub.runtime(plan.repo_id)
    if differs := runtime.hardware != plan.hardware:
        report(f"{plan.repo_id}: hardware {plan.hardware}, {plan.usd_per_hour:.2f} USD per hour")
        hub.request_hardware(plan.repo_id, plan.hardware)
    if plan.sleep_s is not None and runtime.sleep_s != plan.sleep_s:
        report(f"{plan.repo_id}: sleeps after {plan.sleep_s} s without a request")
        hub.set_sleep(plan.repo_id, plan.sleep_s)
    return differs


def _files(plan: SpacePlan, hub: Hub, found: Space, report: Report) -> str:
    files = staging.files_of(plan.unit)
    message = f"{plan.unit.package} of async-rl-spaces {VERSION}, {staging.content_hash(files)}"
    report(f"{plan.repo_id}: uploading {len(files)} files")
    commit = hub.push(plan.repo_id, files, found.files, message)
    report(f"{plan.repo_id}: {'nothing changed' if commit == found.commit else f'commit {commit[:8]}'}")
    return commit


def _visible(private: bool) -> str:
    return "private" if private else "public"
