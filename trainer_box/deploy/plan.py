"""What a deployment consists of, as data: two Spaces and a bucket, what is set in them, and what they cost.

Asks nobody and holds no secret, only the names of those that will be set.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shared import strict_json
from shared.errors import SyncError
from shared.identity import ENV_SPACE, VERSION, VLLM_SPACE, default_bucket
from trainer_box.deploy import staging
from trainer_box.deploy.hardware import FREE, HARDWARE, PRICES_OF, hardware_for
from trainer_box.deploy.staging import ENV, VLLM, Unit

SLEEP_S, NEVER = 3600, -1
_TEMPLATE = "-template"
PLAN = "plan.json"
_SMOKE_S = 300.0


@dataclass(frozen=True)
class SpacePlan:
    """`secrets` maps the Space's names to the names under which this machine's environment has the values.

    `hardware` None is the free one; with `or_larger`, one with more memory may stay. `sleep_s` None is as the
    free machine does it.
    """

    repo_id: str
    unit: Unit
    private: bool
    hardware: str | None
    sleep_s: int | None
    or_larger: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def usd_per_hour(self) -> float:
        return HARDWARE[self.hardware or FREE].usd_per_hour


@dataclass(frozen=True)
class Plan:
    """`bucket` None: there is none, since everybody who duplicates has their own."""

    namespace: str
    model: str
    bucket: str | None
    vllm: SpacePlan
    env: SpacePlan

    @property
    def spaces(self) -> tuple[SpacePlan, SpacePlan]:
        return self.vllm, self.env

    @property
    def usd_per_hour(self) -> float:
        return sum(space.usd_per_hour for space in self.spaces)


def deployment(namespace: str, model: str, hardware: str | None = None, sleep_s: int = SLEEP_S) -> Plan:
    """The private Spaces of one user or organisation, and their bucket. `hardware` None: what the model needs."""
    vllm = SpacePlan(
        f"{namespace}/{VLLM_SPACE}",
        VLLM,
        private=True,
        hardware=hardware or hardware_for(model),
        sleep_s=sleep_s,
        or_larger=hardware is None,
        secrets={"HF_TOKEN": "SPACE_HF_TOKEN", "VLLM_API_KEY": "VLLM_API_KEY"},
        variables={"MODEL": model},
    )
    env = SpacePlan(
        f"{namespace}/{ENV_SPACE}",
        ENV,
        private=True,
        hardware=FREE,
        sleep_s=None,
        secrets={"ENV_API_KEY": "ENV_API_KEY"},
    )
    return Plan(namespace, model, default_bucket(namespace), vllm, env)


def template(namespace: str, model: str) -> Plan:
    """Public Spaces to be duplicated: nobody's secrets, nobody's bucket, nothing that costs."""
    vllm = SpacePlan(
        f"{namespace}/{VLLM_SPACE}{_TEMPLATE}",
        VLLM,
        private=False,
        hardware=None,
        sleep_s=None,
        variables={"MODEL": model},
    )
    env = SpacePlan(f"{namespace}/{ENV_SPACE}{_TEMPLATE}", ENV, private=False, hardware=None, sleep_s=None)
    return Plan(namespace, model, None, vllm, env)


def smoke_cost(plan: Plan) -> str:
    """Said before anything is started."""
    usd = plan.usd_per_hour * _SMOKE_S / 3600
    return (
        f"the smoke check takes a few minutes in which the Spaces run: about {usd:.2f} USD for {_SMOKE_S / 60:.0f} "
        f"minutes ({plan.usd_per_hour:.2f} USD per hour), and they go on until they sleep or are paused"
    )


def write(plan: Plan, folder: Path) -> None:
    """The Space folders as they would be pushed, and `plan.json`. Raises SyncError rather than touch other files."""
    if staging.is_in_a_package(folder):
        raise SyncError(f"{folder} is among the project's own code; name another folder with --dry-run")
    try:
        _clear(folder)
        for space in plan.spaces:
            staging.stage(space.unit, folder / space.unit.package, plan.model)
        (folder / PLAN).write_text(json.dumps(described(plan), indent=2) + "\n")
    except OSError as error:
        raise SyncError(f"{folder} cannot be written: {error.strerror}; name another with --dry-run") from error


def _clear(folder: Path) -> None:
    """Delete what `write` wrote before. Raises SyncError, and deletes nothing, when there is anything else."""
    present = {path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    if others := sorted(present - _written(folder)):
        raise SyncError(f"{folder} holds other files ({others[0]}); name a new or empty folder with --dry-run")
    for path in present:
        path.unlink()


def _written(folder: Path) -> set[Path]:
    """What a plan there says that it was written with; nothing where that is no plan of ours."""
    place = folder / PLAN
    if not place.is_file():
        return set()
    try:
        spaces = strict_json.parse(place.read_bytes())["spaces"]
        return {place, *(folder / space["folder"] / path for space in spaces for path in space["files"])}
    except (ValueError, TypeError, KeyError):
        return set()


def described(plan: Plan) -> dict[str, object]:
    return {
        "project": VERSION,
        "namespace": plan.namespace,
        "model": plan.model,
        "bucket": plan.bucket and {"name": plan.bucket, "private": True},
        "usd_per_hour": plan.usd_per_hour,
        "prices_of": PRICES_OF,
        "spaces": [_described(space, plan.model) for space in plan.spaces],
    }


def _described(space: SpacePlan, model: str) -> dict[str, object]:
    contents = staging.contents_of(space.unit, model)
    return {
        **{name: value for name, value in asdict(space).items() if name not in ("unit", "secrets", "or_larger")},
        "folder": space.unit.package,
        "usd_per_hour": space.usd_per_hour,
        "secrets": sorted(space.secrets),
        "files": list(contents),
        "content_hash": staging.content_hash(contents),
    }
