"""Requests made from the server's own description of its HTTP routes, and bodies that no description makes: none is
answered with 5xx, no message ends its session, and no reset or step raises anything but a refusal.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error

from space_env.app import environment_app
from space_env.environment import RefusedError, WordleEnvironment
from space_env.models import WordleAction
from space_env.sessions import Desk
from tests.space_env.bad_clients import frame, receive_frame, upgraded
from tests.space_env.server import post, running

schema = schemathesis.openapi.from_asgi("/openapi.json", environment_app(None, Desk()))


OPERATIONS = [found.ok() for found in schema.get_all_operations()]


def test_the_description_has_the_routes_of_openenv_and_our_own() -> None:
    routes = {operation.label for operation in OPERATIONS}
    assert routes >= {"GET /status", "POST /mcp", "POST /reset", "POST /step", "GET /state", "GET /schema"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = ["self", "cls", "action", "args", "kwargs", "timeout_s", "environment", "request", "seed", "words"]
"""Names that mean something to the code behind a route: no description tells them, and nobody finds them by chance."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
def test_no_request_to_a_route_is_a_server_error(operation: Any) -> None:
    @settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(), st.dictionaries(st.sampled_from(ARGUMENTS), json_values, max_size=2))
    def ask(case: schemathesis.Case, more: dict[str, Any]) -> None:
        if isinstance(case.body, dict):
            case.body = {**more, **case.body}
        case.call_and_validate(checks=[not_a_server_error])

    ask()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as address:
        yield address


@pytest.mark.parametrize("route", ["reset", "step", "mcp"])
@pytest.mark.parametrize(
    "body",
    [
        *(b'{"seed": NaN}', b'{"seed": 1e999}', b'{"shaping": {"solved": Infinity}}', b'{"seed": %s}' % (b"9" * 5000)),
        *(
            b'{"episode_id": "\\ud800"}',
            b'{"action": {"word": 5, "\\udfff": 1}}',
            b"\xff\xfe",
            b'{"a":' * 3000,
            b'{"x": %s1%s}' % (b"[" * 900, b"]" * 900),
            b'{"action": {"word": %s1%s}}' % (b"[" * 300, b"]" * 300),
            b'{"self": 1}',
            b'{"action": {"word": "x"}, "self": 1}',
            b"{",
            b"[]",
        ),
        *(b'{"shaping": {"green": "x"}}', b'{"words": {}}', b'{"action": {"word": "\\u0000"}}', b'{"a":' * 3000),
    ],
)
def test_no_body_is_a_server_error(url: str, route: str, body: bytes) -> None:
    assert post(f"{url}/{route}", body)[0] < 500


messages = st.fixed_dictionaries(
    {"type": st.sampled_from(["reset", "step", "state", "mcp"]) | st.text(max_size=3)},
    optional={
        "data": st.dictionaries(st.sampled_from([*ARGUMENTS, "word", "shaping"]), json_values) | json_values,
        "more": json_values,
    },
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=messages, depth=st.sampled_from([0, 30, 250, 1000]))
def test_no_message_ends_its_session(url: str, message: dict[str, Any], depth: int) -> None:
    raw = upgraded(url)
    text = json.dumps({**message, "deep": "DEEP"} if depth else message)
    raw.sendall(frame(text.replace('"DEEP"', "[" * depth + "]" * depth)))
    receive_frame(raw)
    raw.sendall(frame('{"type": "state"}'))
    assert b'"type":"state"' in receive_frame(raw)
    raw.close()


names = st.sampled_from(["tiny", "full", "green", "solved"])


@settings(max_examples=200, deadline=None)
@given(
    arguments=st.fixed_dictionaries(
        {},
        optional={
            "seed": json_values,
            "words": names | json_values,
            "shaping": st.dictionaries(names, json_values) | json_values,
            "episode_id": json_values,
            "unknown": json_values,
        },
    ),
    words=st.lists(st.text() | st.sampled_from(["above", "CRANE ", "zzzzz"]), max_size=8),
)
def test_a_reset_and_steps_of_anything_play_or_are_refused(arguments: dict[str, Any], words: list[str]) -> None:
    environment = WordleEnvironment()
    with suppress(RefusedError):
        environment.reset(**arguments)
        for word in words:
            environment.step(WordleAction(word=word))
    assert environment.state.step_count <= 6
