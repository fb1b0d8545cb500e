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
from trainer_box.deploy.hardware import FREE, HARDWARE
from trainer_box.deploy.hub import Hub, Space
from trainer_box.deploy.plan import NEVER, SpacePlan

_OF_A_NEW_ONE = frozenset({".gitattributes", "README.md"})
_SETTINGS = {
    "BUCKET",
    "RUN_ID",
    "SERVED_MODEL_NAME",
    "MODEL",
    "PORT",
    "HOST",
    "HF_TOKEN",
    "VLLM_API_KEY",
    "ENV_API_KEY",
}


@dataclass(frozen=True)
class Applied:
    """What a Space should run now. `is_new`: this commit was made just now; `changed_at` is when something was last
    changed in it (monotonic seconds), None where nothing was."""

    commit: str
    is_new: bool
    changed_at: float | None


def apply(plan: SpacePlan, model: str, hub: Hub, secrets: Mapping[str, str], report: Report) -> Applied:
    """`secrets` has the values, by the names that the plan gives; the card tells `model`. Raises SyncError."""
    found = hub.space(plan.repo_id)
    if found is None:
        report(f"{plan.repo_id}: making it, {_visible(plan.private)}")
        hub.create_space(plan.repo_id, plan.private, plan.hardware, plan.sleep_s)
        found = _expect(hub.space(plan.repo_id), plan)
    _check(found, plan, hub, report)
    changed = _settings(plan, hub, secrets, report)
    changed |= _machine(plan, hub, report)
    commit = _files(plan, hub, model, found, report)
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
    """Raises SyncError for what is not ours to change, before anything of it is."""
    if space.sdk != "docker":
        raise SyncError(
            f"{plan.repo_id} is there already as a Space of kind {space.sdk!r}, not docker; rename or delete it, or "
            "choose another --namespace"
        )
    if not space.files <= _OF_A_NEW_ONE and f"{plan.unit.package}/serve.py" not in space.files:
        raise SyncError(
            f"{plan.repo_id} is there already, and its files are not this project's; rename or delete it, or choose "
            "another --namespace"
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
    changed = _variables(plan, hub, report)
    there = hub.secrets(plan.repo_id) if plan.secrets else {}
    for name, source in plan.secrets.items():
        if there.get(name) != (description := described(secrets[source])):
            report(f"{plan.repo_id}: secret {name}")
            hub.set_secret(plan.repo_id, name, secrets[source], description)
            changed = True
    return changed


def _variables(plan: SpacePlan, hub: Hub, report: Report) -> bool:
    """Those that the plan does not know are deleted where they would change what the Space serves, or be public."""
    there = hub.variables(plan.repo_id)
    left_over = [name for name in there if name not in plan.variables and (name in _SETTINGS or not plan.private)]
    for name in left_over:
        report(f"{plan.repo_id}: variable {name} is deleted, as {_why(plan)}")
        hub.delete_variable(plan.repo_id, name)
    differing = {name: value for name, value in plan.variables.items() if there.get(name) != value}
    for name, value in differing.items():
        report(f"{plan.repo_id}: variable {name} = {value}")
        hub.set_variable(plan.repo_id, name, value)
    return bool(left_over or differing)


def _why(plan: SpacePlan) -> str:
    return "this deployment sets none" if plan.private else "a template has none, and everybody could read it"


def _machine(plan: SpacePlan, hub: Hub, report: Report) -> bool:
    """A private Space that is planned on free hardware keeps what somebody chose for it."""
    if plan.private and plan.hardware == FREE:
        return False
    runtime = hub.runtime(plan.repo_id)
    wanted = _machine_for(plan, runtime.hardware)
    if differs := (runtime.hardware or FREE) != wanted:
        report(f"{plan.repo_id}: hardware {wanted}, {HARDWARE[wanted].usd_per_hour:.2f} USD per hour")
        hub.request_hardware(plan.repo_id, wanted)
    elif wanted != (plan.hardware or FREE):
        price = f"{HARDWARE[wanted].usd_per_hour:.2f} USD per hour"
        report(f"{plan.repo_id}: it keeps its hardware {wanted}, {price} (--hardware names another)")
    if plan.sleep_s is not None and _slept(runtime.sleep_s) != plan.sleep_s:
        report(f"{plan.repo_id}: {_sleeping(plan.sleep_s)}")
        hub.set_sleep(plan.repo_id, plan.sleep_s)
    return differs


def _machine_for(plan: SpacePlan, present: str | None) -> str:
    """What the Space should run on: what it has, where any will do that is large enough."""
    wanted = plan.hardware or FREE
    there = HARDWARE.get(present or "")
    is_enough = there is not None and there.gpu_gb >= HARDWARE[wanted].gpu_gb
    return there.name if there and is_enough and plan.or_larger else wanted


def _slept(told: int | None) -> int:
    """The Hub tells no sleep time of a Space with a GPU that never sleeps."""
    return NEVER if told is None or told < 0 else told


def _sleeping(seconds: int) -> str:
    if seconds == NEVER:
        return "it never sleeps, and costs until it is paused"
    return f"sleeps after {seconds} s without a request"


def _files(plan: SpacePlan, hub: Hub, model: str, found: Space, report: Report) -> str:
    files = staging.contents_of(plan.unit, model)
    message = f"{plan.unit.package} of async-rl-spaces {VERSION}, {staging.content_hash(files)}"
    report(f"{plan.repo_id}: uploading {len(files)} files")
    commit = hub.push(plan.repo_id, files, found.files, message)
    report(f"{plan.repo_id}: {'nothing changed' if commit == found.commit else f'commit {commit[:8]}'}")
    return commit


def _visible(private: bool) -> str:
    return "private" if private else "public"
