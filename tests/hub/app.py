"""The Hub's bucket API and Xet's storage API, as far as huggingface_hub 2.4 and hf_xet 1.8 use them for buckets.

Spaces are in tests.hub.spaces.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.hub.faults import HUB, Broken, Fault, Faults, Struck
from tests.hub.spaces import Spaces
from tests.hub.store import Entry, Store, byte_range
from tests.hub.xet import Segment, files_of

PAGE = 1000
Handler = Callable[[Request, Fault | None], Awaitable[Response]]


class StandInHub:
    """`token` None lets everybody in; `bucket` None has every bucket."""

    def __init__(self, folder: Path, token: str | None = None, bucket: str | None = None) -> None:
        self.faults = Faults()
        self._store = Store(folder)
        self._token, self._bucket = token, bucket
        self._spaces = Spaces(lambda name: name == bucket or bool(self._store.entries(name)))

    def app(self) -> Starlette:
        api = "/api/buckets/{user}/{name}"
        served: list[tuple[str, str, str, Handler]] = [
            ("write-token", "GET", f"{api}/xet-write-token", self._xet_token),
            ("read-token", "GET", f"{api}/xet-read-token", self._xet_token),
            ("batch", "POST", f"{api}/batch", self._batch),
            ("info", "POST", f"{api}/paths-info", self._info),
            ("tree", "GET", f"{api}/tree", self._tree),
            ("tree", "GET", f"{api}/tree/{{path:path}}", self._tree),
            ("resolve", "HEAD", "/buckets/{user}/{name}/resolve/{path:path}", self._resolve),
            ("xorb-upload", "POST", "/xet/v1/xorbs/default/{hash}", self._add_xorb),
            ("shard", "POST", "/xet/v1/shards", self._add_shard),
            ("reconstruction", "GET", "/xet/v1/reconstructions/{hash}", self._reconstruct),
            ("xorb", "GET", "/xet/xorbs/{hash}", self._xorb),
            *self._spaces.served(),
        ]
        routes = [Route(path, _Endpoint(self, name, act), methods=[method]) for name, method, path, act in served]
        telemetry = Route("/xet/v1/telemetry", self._telemetry, methods=["POST"])
        control = Route("/control/{place}", self._control, methods=["GET", "POST", "DELETE"])
        return Starlette(routes=[*routes, telemetry, control, Route("/health", self._health)])

    def refusal(self, endpoint: str, request: Request) -> Response | None:
        """The answer to one who may not, or whose bucket is not there."""
        if endpoint not in HUB:
            return None
        if self._token is not None and request.headers.get("authorization") != f"Bearer {self._token}":
            return JSONResponse({"error": "Invalid credentials in Authorization header"}, 401)
        if self._bucket is not None and "user" in request.path_params and _bucket(request) != self._bucket:
            return JSONResponse({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        return None

    async def paths(self, endpoint: str, request: Request) -> list[str]:
        """The paths that a request is about, as far as it tells."""
        if endpoint == "batch":
            return [operation["path"] for operation in await _operations(request)]
        if endpoint == "info":
            return [str(path) for path in (await request.json())["paths"]]
        if endpoint == "reconstruction":
            return self._store.paths_of(request.path_params["hash"])
        return [str(request.path_params[name]) for name in ("path", "kind") if name in request.path_params]

    async def _control(self, request: Request) -> Response:
        match request.method, request.path_params["place"]:
            case "POST", "fault":
                self.faults.add(Fault(**await request.json()))
            case "POST", "remove":
                self._store.remove(**await request.json())
            case "DELETE", "faults":
                self.faults.clear()
            case "DELETE", "files":
                self._store.empty()
                self._spaces.empty()
            case "GET", "spaces":
                return JSONResponse(self._spaces.described())
            case "POST", "spaces":
                self._spaces.change(**await request.json())
        return JSONResponse(self.faults.counts)

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _telemetry(self, request: Request) -> Response:
        return JSONResponse({})

    async def _xet_token(self, request: Request, fault: Fault | None) -> Response:
        answer = {"casUrl": f"{request.base_url}xet", "exp": 4_000_000_000, "accessToken": secrets.token_hex(8)}
        return JSONResponse(answer)

    async def _batch(self, request: Request, fault: Fault | None) -> Response:
        operations, failed = await _operations(request), []
        for operation in operations:
            if fault is not None and fault.kind == "refuse" and fault.path in operation["path"]:
                failed.append({"path": operation["path"], "error": "the stand-in was told to refuse it"})
            elif not self._apply(_bucket(request), operation, fault):
                failed.append({"path": operation["path"], "error": "its content was not uploaded"})
        counts = {"processed": len(operations), "succeeded": len(operations) - len(failed)}
        return JSONResponse({"success": not failed, **counts, "failed": failed})

    def _apply(self, bucket: str, operation: dict[str, Any], fault: Fault | None) -> bool:
        if operation["type"] == "deleteFile":
            self._store.remove(bucket, operation["path"])
            return True
        late = {} if fault is None or fault.path not in operation["path"] else {fault.kind: fault.seconds}
        if "lose" in late:
            return True
        return self._store.put(
            bucket,
            operation["path"],
            operation["xetHash"],
            operation["mtime"],
            late.get("list late", 0.0),
            late.get("bytes late", 0.0),
        )

    async def _info(self, request: Request, fault: Fault | None) -> Response:
        entries, paths = self._store.entries(_bucket(request)), (await request.json())["paths"]
        return JSONResponse([entries[path].info() for path in paths if path in entries])

    async def _tree(self, request: Request, fault: Fault | None) -> Response:
        """Recursive unless told otherwise, `PAGE` items at a time, as the Hub does it."""
        prefix, start = request.path_params.get("path", ""), int(request.query_params.get("cursor", 0))
        entries = sorted(self._store.entries(_bucket(request)).items())
        items = [entry for path, entry in entries if path.startswith(prefix)]
        listed = _level(items, prefix) if request.query_params.get("recursive") == "false" else _flat(items)
        more = request.url.include_query_params(cursor=start + PAGE)
        headers = {"Link": f'<{more}>; rel="next"'} if start + PAGE < len(listed) else {}
        return JSONResponse(listed[start : start + PAGE], headers=headers)

    async def _resolve(self, request: Request, fault: Fault | None) -> Response:
        entry = self._store.entries(_bucket(request)).get(request.path_params["path"])
        if entry is None:
            return Response(status_code=404, headers={"X-Error-Code": "EntryNotFound"})
        route = f"{request.base_url}api/buckets/{_bucket(request)}/xet-read-token"
        headers = {"X-Xet-Hash": entry.xet_hash, "X-Linked-Size": str(entry.size), "X-Xet-Refresh-Route": route}
        return Response(headers=headers)

    async def _add_xorb(self, request: Request, fault: Fault | None) -> Response:
        place = self._store.xorb(request.path_params["hash"])
        partial = place.with_name(f"{place.name}.{secrets.token_hex(4)}")
        with partial.open("wb") as file:
            async for piece in request.stream():
                file.write(piece)
        partial.replace(place)
        return JSONResponse({"was_inserted": True})

    async def _add_shard(self, request: Request, fault: Fault | None) -> Response:
        try:
            for name, segments in files_of(await request.body()):
                self._store.add_file(name, segments)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({"result": 1})

    async def _reconstruct(self, request: Request, fault: Fault | None) -> Response:
        name = request.path_params["hash"]
        segments = self._store.segments(name)
        if segments is None or not self._store.has_bytes(name):
            return JSONResponse({"error": "not found"}, 404)
        fetched: dict[str, list[dict[str, Any]]] = {}
        for segment in segments:
            fetched.setdefault(segment.xorb, []).append(self._fetch(segment, str(request.base_url)))
        terms = [{"hash": part.xorb, "unpacked_length": part.unpacked, "range": _chunks(part)} for part in segments]
        return JSONResponse({"offset_into_first_range": 0, "terms": terms, "fetch_info": fetched})

    def _fetch(self, segment: Segment, base_url: str) -> dict[str, Any]:
        first, last = byte_range(self._store.xorb(segment.xorb), segment.start, segment.end)
        url = f"{base_url}xet/xorbs/{segment.xorb}"
        return {"range": _chunks(segment), "url": url, "url_range": {"start": first, "end": last}}

    async def _xorb(self, request: Request, fault: Fault | None) -> Response:
        return FileResponse(self._store.xorb(request.path_params["hash"]), media_type="application/octet-stream")


class _Endpoint:
    """One route as an ASGI application, struck by the faults that wait for it."""

    def __init__(self, hub: StandInHub, name: str, handler: Handler) -> None:
        self._hub, self._name, self._handler = hub, name, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        struck = Struck(receive, send)
        request = Request(scope, struck.receive)
        refusal = self._hub.refusal(self._name, request)
        fault = self._hub.faults.take(self._name, await self._hub.paths(self._name, request))
        if refusal is None and fault is not None and fault.kind == "status":
            refusal = Response(fault.body, fault.status, _headers(fault), "application/json")
        struck.fault = fault
        try:
            if fault is not None and fault.kind == "stall" and self._name != "xorb":
                await asyncio.sleep(fault.seconds)
                raise Broken
            response = refusal or await self._handler(request, fault)
            await response(scope, struck.receive, struck.send)
        except Broken:
            # An answer that is not complete makes the server close the connection.
            if not struck.started:
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})


def _headers(fault: Fault) -> dict[str, str]:
    return {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}


def _bucket(request: Request) -> str:
    return f"{request.path_params['user']}/{request.path_params['name']}"


async def _operations(request: Request) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await request.body()).splitlines()]


def _flat(entries: list[Entry]) -> list[dict[str, object]]:
    return [entry.info() for entry in entries]


def _level(entries: list[Entry], prefix: str) -> list[dict[str, object]]:
    """Files directly below the prefix, and a folder in the place of what lies deeper."""
    found: dict[str, dict[str, object]] = {}
    for entry in entries:
        first, slash, _ = entry.path.removeprefix(prefix).partition("/")
        path = prefix + first
        found[path] = {"type": "directory", "path": path} if slash else entry.info()
    return list(found.values())


def _chunks(segment: Segment) -> dict[str, int]:
    return {"start": segment.start, "end": segment.end}
