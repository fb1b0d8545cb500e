"""The calls to the Hub that a deployment is made of: each ends by a deadline, is repeated, and fails in a sentence.

Knows huggingface_hub; nothing of plans.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from shared.bucket.asking import asked, made_once, seen
from shared.bucket.client import connect
from shared.bucket.retries import PATIENT, Limits
from trainer_box.deploy.failures import REMEDIES, translated

T = TypeVar("T")

_COMMIT_S = 300.0
_OWN_FILES = (".gitattributes",)  # the Hub's


@dataclass(frozen=True)
class Account:
    """Whose token it is. `namespaces` are where it may make Spaces, as far as the Hub tells.

    `role` is the token's, and `permissions` those of a fine-grained one.
    """

    name: str
    namespaces: tuple[str, ...]
    role: str
    permissions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Space:
    """A Space as it is on the Hub. `host` is its address, empty until it has one; `commit` its newest one."""

    sdk: str
    private: bool
    host: str
    commit: str
    files: frozenset[str]


@dataclass(frozen=True)
class Runtime:
    """`commit` is what runs, empty where the Hub does not tell; `sleep_s` None: it tells none.

    `problem` is what the Hub says went wrong.
    """

    stage: str
    hardware: str | None
    sleep_s: int | None
    problem: str
    commit: str = ""


class Hub:
    """All raise SyncError with a sentence. Setting what is set already does no harm, so calls are repeated."""

    def __init__(self, token: str | None, limits: Limits = PATIENT) -> None:
        self._client = connect(token)
        self._limits = limits

    def account(self, token: str = "HF_TOKEN", remedies: Mapping[int, str] = REMEDIES) -> Account:
        """`token` is how the token of this client is called."""
        return asked(
            f"cannot ask whose token {token} is",
            lambda: _account(self._client.whoami()),
            self._limits,
            lambda error, what: translated(error, what, remedies),
        )

    def space(self, repo_id: str) -> Space | None:
        """None when there is none, or the token may not see it."""

        def look() -> Space | None:
            if (info := seen(lambda: self._client.space_info(repo_id))) is None:
                return None
            files = frozenset(sibling.rfilename for sibling in info.siblings or ())
            return Space(info.sdk or "", bool(info.private), info.host or "", info.sha or "", files)

        return self._asked(f"cannot look at Space {repo_id}", look)

    def create_space(self, repo_id: str, private: bool, hardware: str | None, sleep_s: int | None) -> None:
        wanted: dict[str, Any] = {"space_hardware": hardware, "space_sleep_time": sleep_s}
        make = made_once(
            lambda: self._client.create_repo(repo_id, repo_type="space", space_sdk="docker", private=private, **wanted)
        )
        self._asked(f"cannot make Space {repo_id}", make)

    def secrets(self, repo_id: str) -> dict[str, str]:
        """Name to description; the Hub tells no values."""
        found = self._asked(f"cannot list the secrets of {repo_id}", lambda: self._client.get_space_secrets(repo_id))
        return {name: secret.description or "" for name, secret in found.items()}

    def set_secret(self, repo_id: str, name: str, value: str, description: str) -> None:
        self._asked(
            f"cannot set secret {name} of {repo_id}",
            lambda: self._client.add_space_secret(repo_id, name, value, description=description),
        )

    def variables(self, repo_id: str) -> dict[str, str]:
        what = f"cannot list the variables of {repo_id}"
        found = self._asked(what, lambda: self._client.get_space_variables(repo_id))
        return {name: variable.value for name, variable in found.items()}

    def set_variable(self, repo_id: str, name: str, value: str) -> None:
        what = f"cannot set variable {name} of {repo_id}"
        self._asked(what, lambda: self._client.add_space_variable(repo_id, name, value))

    def delete_variable(self, repo_id: str, name: str) -> None:
        """One that is gone already is deleted."""
        what = f"cannot delete variable {name} of {repo_id}"
        self._asked(what, lambda: seen(lambda: self._client.delete_space_variable(repo_id, name)))

    def runtime(self, repo_id: str) -> Runtime:
        def look() -> Runtime:
            told = self._client.get_space_runtime(repo_id)
            hardware = told.requested_hardware or told.hardware
            problem, commit = (str(told.raw.get(name) or "") for name in ("errorMessage", "sha"))
            return Runtime(str(told.stage), str(hardware) if hardware else None, told.sleep_time, problem, commit)

        return self._asked(f"cannot ask how {repo_id} is", look)

    def request_hardware(self, repo_id: str, hardware: str | None) -> None:
        wanted: Any = hardware
        self._asked(
            f"cannot have {hardware} for {repo_id}", lambda: self._client.request_space_hardware(repo_id, wanted)
        )

    def set_sleep(self, repo_id: str, seconds: int) -> None:
        what = f"cannot set the sleep time of {repo_id}"
        self._asked(what, lambda: self._client.set_space_sleep_time(repo_id, seconds))

    def restart(self, repo_id: str) -> None:
        self._asked(f"cannot restart {repo_id}", lambda: self._client.restart_space(repo_id))

    def pause(self, repo_id: str) -> None:
        self._asked(f"cannot pause {repo_id}", lambda: self._client.pause_space(repo_id))

    def push(self, repo_id: str, files: Mapping[str, bytes], present: frozenset[str], message: str) -> str:
        """Make the Space's files exactly these, in one commit; its id. One that changes nothing is not made.

        Not `upload_folder`, which makes several commits of many files, and each builds the Space anew.
        """
        gone = sorted(present - files.keys() - set(_OWN_FILES))

        def commit() -> str:
            adding = [CommitOperationAdd(there, content) for there, content in files.items()]
            operations: list[Any] = [*adding, *(CommitOperationDelete(path) for path in gone)]
            made = self._client.create_commit(repo_id, operations, commit_message=message, repo_type="space")
            return made.oid

        return self._asked(f"cannot upload to {repo_id}", commit, _COMMIT_S)

    def _asked(self, what: str, call: Callable[[], T], seconds: float | None = None) -> T:
        return asked(what, call, self._limits, translated, seconds)


def _account(told: Any) -> Account:
    """Raises what a Hub makes it raise that tells something else."""
    if not isinstance(told["name"], str):
        raise ValueError("it has no name")
    names = (one.get("name") for one in told.get("orgs") or ())
    token = (told.get("auth") or {}).get("accessToken") or {}
    fine = token.get("fineGrained") or {}
    scoped = (permission for scope in fine.get("scoped") or () for permission in scope.get("permissions") or ())
    permissions = tuple(str(permission) for permission in (*(fine.get("global") or ()), *scoped))
    namespaces = (told["name"], *(name for name in names if isinstance(name, str)))
    return Account(told["name"], namespaces, str(token.get("role") or ""), permissions)
