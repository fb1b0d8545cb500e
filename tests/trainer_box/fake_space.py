"""A stand-in for the vLLM Space on loopback: health, models, status, updates and completions, as a test scripts them.

Knows no weights: an update is live at once unless a script says otherwise, and so the status says; its fingerprint is
what a bucket's manifest says.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shared.bucket import Bucket
from shared.identity import identity
from shared.reader import RunReader
from tests.http_servers import LoopbackServer, QuietHandler, listening

KEY = "a-very-secret-key"
TIMES = {"stage_ms": 1200.0, "pause_ms": 50.0, "apply_ms": 20.0}
CUT_OFF = 0
LONGEST_ROW = 4096


@dataclass(frozen=True)
class Answer:
    """`status` CUT_OFF ends the connection without an answer; text that is no JSON goes out as HTML."""

    status: int
    body: Any = ""


Complete = Callable[[dict[str, Any]], tuple[list[int], list[float]]]


class FakeSpace(LoopbackServer):
    """`script` holds the next answers to /weights/update, `fixed` the answers of whole paths, such as "/health"."""

    def __init__(self, models: list[str], key: str = "") -> None:
        super().__init__(_Handler)
        self.models = models
        self.key = key
        self.script: list[Answer] = []
        self.fixed: dict[str, Answer] = {}
        told = {"bucket": "local:bucket", "pinned_run": None, "dtype": "float32", **identity({})}
        self.status: dict[str, Any] = {"version": 0, "logprobs_mode": "processed_logprobs", **told}
        self.complete: Complete = lambda body: ([7], [-1.0])
        self.fingerprint: Callable[[str, int], str] = lambda run_id, version: "0" * 16
        self.updates: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.completions: list[dict[str, Any]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that is stopped does not wait for its answer
            super().handle_error(request, client_address)

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Answer:
        self.headers.append(headers)
        if path in self.fixed:
            return self.fixed[path]
        if path == "/health":
            return Answer(200)
        if self.key and headers.get("Authorization") != f"Bearer {self.key}":
            return Answer(401, {"error": "no or wrong key"})
        if path == "/v1/models":
            return Answer(200, {"data": [{"id": name, "max_model_len": LONGEST_ROW} for name in self.models]})
        if path == "/weights/status":
            return Answer(200, self.status)
        if path == "/weights/update":
            return self._update(body)
        return self._completion(body) if path == "/v1/completions" else Answer(404, "<html>no such page</html>")

    def follow(self, bucket: Bucket) -> None:
        """The weights that are live are those of this bucket's manifests."""
        self.status["bucket"] = bucket.name
        self.fingerprint = lambda run_id, version: RunReader(bucket, run_id).manifest(version).fingerprint

    def _update(self, body: dict[str, Any]) -> Answer:
        self.updates.append(body)
        if self.script:
            return self.script.pop(0)
        version, fingerprint = body["version"], self.fingerprint(body["run_id"], body["version"])
        self.status.update(version=version, run_id=body["run_id"], fingerprint=fingerprint, state="serving")
        return Answer(200, {"version": version, "kind": "delta", "fingerprint": fingerprint, **TIMES})

    def _completion(self, body: dict[str, Any]) -> Answer:
        self.completions.append(body)
        tokens, logprobs = self.complete(body)
        return Answer(
            200,
            {"choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop"}]},
        )


class _Handler(QuietHandler):
    server: FakeSpace

    def do_GET(self) -> None:
        self._respond({})

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _respond(self, body: dict[str, Any]) -> None:
        answer = self.server.answer(self.path.partition("?")[0], dict(self.headers.items()), body)
        if answer.status == CUT_OFF:
            self.close_connection = True
            return
        is_text = isinstance(answer.body, str)
        payload = (answer.body if is_text else json.dumps(answer.body)).encode()
        self.reply(answer.status, payload, {"Content-Type": "text/html" if is_text else "application/json"})


@contextmanager
def fake_space(*models: str, key: str = "") -> Iterator[FakeSpace]:
    server = FakeSpace(list(models), key)
    with listening(server):
        yield server
