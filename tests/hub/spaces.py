"""The Hub's API of Spaces and of buckets as such, as far as huggingface_hub 2.4 uses it to deploy; kept in memory.

A Space that has files runs at once, and answers `/health` and, with its key, its status below its address. What it
would do is for nobody here. A token with `read` in it may only read.
"""

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shared.identity import identity
from tests.hub.faults import Fault

Handler = Callable[[Request, Fault | None], Awaitable[Response]]
_KEYS = {"weights/status": "VLLM_API_KEY", "status": "ENV_API_KEY"}
_MOMENT = "2026-01-01T00:00:00.000Z"


@dataclass
class Space:
    """`files` are contents by path; `commits` their messages, `restarts` how often its settings changed or it was told
    to."""

    sdk: str
    private: bool
    hardware: str = "cpu-basic"
    sleep_s: int | None = None
    paused: bool = False
    restarts: int = 0
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    @property
    def stage(self) -> str:
        if not self.files:
            return "NO_APP_FILE"
        return "PAUSED" if self.paused else "RUNNING"

    def runtime(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "hardware": {"current": self.hardware if self.files else None, "requested": self.hardware},
            "gcTimeout": self.sleep_s,
            "sha": self.sha if self.files else None,
        }

    @property
    def sha(self) -> str:
        return hashlib.sha1(f"{len(self.commits)} {self.commits}".encode()).hexdigest()


class Spaces:
    """`user` is whose token everybody has, `organisation` the one that user belongs to."""

    user, organisation = "user", "org"

    def __init__(self, held: Callable[[str], bool]) -> None:
        """`held` says whether a bucket has files, and so is there without having been made."""
        self._held = held
        self.spaces: dict[str, Space] = {}
        self.buckets: dict[str, bool] = {}

    def served(self) -> list[tuple[str, str, str, Handler]]:
        space, bucket = "/api/spaces/{owner}/{repo}", "/api/buckets/{user}/{name}"
        return [
            ("whoami", "GET", "/api/whoami-v2", self._whoami),
            ("bucket", "GET", bucket, self._bucket),
            ("bucket-create", "POST", bucket, self._create_bucket),
            ("space-create", "POST", "/api/repos/create", self._create),
            ("duplicate", "POST", f"{space}/duplicate", self._duplicate),
            ("space", "GET", space, self._info),
            ("space", "GET", f"{space}/revision/{{revision}}", self._info),
            ("card", "POST", "/api/validate-yaml", self._validate),
            ("preupload", "POST", f"{space}/preupload/{{revision}}", self._preupload),
            ("commit", "POST", f"{space}/commit/{{revision}}", self._commit),
            ("app", "GET", "/app/{owner}/{repo}/{path:path}", self._app),
            ("settings", "GET", f"{space}/{{kind:str}}", self._list),
            ("settings", "POST", f"{space}/{{kind:str}}", self._set),
            ("settings", "DELETE", f"{space}/{{kind:str}}", self._delete),
        ]

    def described(self) -> dict[str, Any]:
        spaces = {name: {**asdict(space), "stage": space.stage} for name, space in self.spaces.items()}
        return {"spaces": spaces, "buckets": self.buckets}

    def change(self, name: str, **values: Any) -> None:
        """Somebody else's doing: a Space's fields, made with `values` when there is none; or a public bucket."""
        if values.pop("is_bucket", False):
            self.buckets[name] = values["private"]
            return
        space = self.spaces.setdefault(name, Space("docker", True))
        for field_name, value in values.items():
            setattr(space, field_name, value)

    def empty(self) -> None:
        self.spaces.clear()
        self.buckets.clear()

    async def _app(self, request: Request, fault: Fault | None) -> Response:
        """What a Space itself answers, with the keys that its secrets hold."""
        name, path = _name(request), request.path_params["path"]
        if name not in self.spaces or self.spaces[name].stage != "RUNNING":
            return Response(status_code=503)
        key = _KEYS.get(path)
        if path != "health" and key is None:
            return Response(status_code=404)
        held = self.spaces[name].secrets.get(key or "", {}).get("value", "")
        if held and request.headers.get("authorization") != f"Bearer {held}":
            return Response(status_code=401)
        return JSONResponse(identity({"SPACE_ID": name}))

    async def _whoami(self, request: Request, fault: Fault | None) -> Response:
        is_reader = "read" in request.headers.get("authorization", "")
        auth = {"accessToken": {"role": "read" if is_reader else "write"}}
        return JSONResponse({"name": self.user, "orgs": [{"name": self.organisation}], "auth": auth})

    async def _bucket(self, request: Request, fault: Fault | None) -> Response:
        name = f"{request.path_params['user']}/{request.path_params['name']}"
        if name not in self.buckets and not self._held(name):
            return _missing()
        told = {"id": name, "private": self.buckets.get(name, True), "createdAt": _MOMENT}
        return JSONResponse({**told, "size": 0, "totalFiles": 0})

    async def _create_bucket(self, request: Request, fault: Fault | None) -> Response:
        name = f"{request.path_params['user']}/{request.path_params['name']}"
        if name in self.buckets:
            return JSONResponse({"error": "You already created this bucket"}, 409)
        self.buckets[name] = (await request.json()).get("visibility") == "private"
        return JSONResponse({"url": f"{request.base_url}buckets/{name}"})

    async def _create(self, request: Request, fault: Fault | None) -> Response:
        asked = await request.json()
        name = f"{asked.get('organization') or self.user}/{asked['name']}"
        return self._made(request, name, Space(asked["sdk"], asked.get("visibility") == "private"), asked)

    async def _duplicate(self, request: Request, fault: Fault | None) -> Response:
        """Files and variables are copied, secrets are not."""
        source, asked = self.spaces[_name(request)], await request.json()
        copy = Space(source.sdk, asked.get("visibility") == "private", files=source.files, commits=["duplicate"])
        copy.variables = dict(source.variables)
        return self._made(request, asked["repository"], copy, asked)

    def _made(self, request: Request, name: str, space: Space, asked: dict[str, Any]) -> Response:
        if name in self.spaces:
            return JSONResponse({"error": "You already created this space repo"}, 409)
        space.hardware, space.sleep_s = asked.get("hardware") or "cpu-basic", asked.get("sleepTimeSeconds")
        space.secrets.update({secret["key"]: secret for secret in asked.get("secrets", [])})
        space.variables.update({variable["key"]: variable for variable in asked.get("variables", [])})
        self.spaces[name] = space
        return JSONResponse({"url": f"{request.base_url}spaces/{name}"})

    async def _info(self, request: Request, fault: Fault | None) -> Response:
        name = _name(request)
        if name not in self.spaces:
            return _missing()
        space = self.spaces[name]
        told = {"id": name, "sdk": space.sdk, "private": space.private, "sha": space.sha}
        siblings = [{"rfilename": path} for path in space.files]
        return JSONResponse({**told, "host": f"{request.base_url}app/{name}", "siblings": siblings})

    async def _validate(self, request: Request, fault: Fault | None) -> Response:
        return JSONResponse({"errors": [], "warnings": []})

    async def _preupload(self, request: Request, fault: Fault | None) -> Response:
        files = self.spaces[_name(request)].files
        asked = [file["path"] for file in (await request.json())["files"]]
        told = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in asked]
        return JSONResponse({"files": [{**one, "oid": _blob(files.get(str(one["path"])))} for one in told]})

    async def _commit(self, request: Request, fault: Fault | None) -> Response:
        space = self.spaces[_name(request)]
        for line in (await request.body()).splitlines():
            operation = json.loads(line)
            value = operation["value"]
            match operation["key"]:
                case "header":
                    space.commits.append(value["summary"])
                case "file":
                    space.files[value["path"]] = value["content"]
                case "deletedFile":
                    del space.files[value["path"]]
        return JSONResponse(
            {"commitUrl": f"{request.base_url}spaces/{_name(request)}/commit/{space.sha}", "commitOid": space.sha}
        )

    async def _list(self, request: Request, fault: Fault | None) -> Response:
        space = self.spaces[_name(request)]
        match request.path_params["kind"]:
            case "secrets":
                told = {name: {"description": one.get("description")} for name, one in space.secrets.items()}
                return JSONResponse(told)
            case "variables":
                return JSONResponse(space.variables)
            case "runtime":
                return JSONResponse(space.runtime())
        return _missing()

    async def _set(self, request: Request, fault: Fault | None) -> Response:
        space, kind = self.spaces[_name(request)], request.path_params["kind"]
        asked = json.loads(await request.body() or b"{}")
        space.restarts += 1
        match kind:
            case "secrets":
                space.secrets[asked["key"]] = asked
            case "variables":
                space.variables[asked["key"]] = asked
            case "hardware":
                space.hardware = asked["flavor"]
            case "sleeptime":
                space.sleep_s = asked["seconds"]
            case "pause" | "restart":
                space.paused = kind == "pause"
            case _:
                return _missing()
        return JSONResponse(space.variables if kind == "variables" else space.runtime())

    async def _delete(self, request: Request, fault: Fault | None) -> Response:
        space = self.spaces[_name(request)]
        space.restarts += 1
        del space.variables[(await request.json())["key"]]
        return JSONResponse(space.variables)


def _name(request: Request) -> str:
    return f"{request.path_params['owner']}/{request.path_params['repo']}"


def _missing() -> Response:
    return JSONResponse({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})


def _blob(content: str | None) -> str | None:
    """Git's name for a content, which is base64 here."""
    if content is None:
        return None
    raw = base64.b64decode(content)
    return hashlib.sha1(b"blob %d\0" % len(raw) + raw).hexdigest()
