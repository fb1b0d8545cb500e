"""Requests made from the server's own description of its HTTP routes, and bodies that no description makes: none is
answered with 5xx, and no reset or step raises anything but a refusal.

Left out are OpenEnv's routes for tasks, which answer 501 in every environment that has none.
"""

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
from tests.space_env.server import post, running

schema = schemathesis.openapi.from_asgi("/openapi.json", environment_app(None, Desk())).exclude(tag="Task API")


OPERATIONS = [found.ok() for found in schema.get_all_operations()]


def test_the_description_has_the_routes_of_openenv_and_our_own() -> None:
    routes = {operation.label for operation in OPERATIONS}
    assert routes >= {"GET /status", "POST /mcp", "POST /reset", "POST /step", "GET /state", "GET /schema"}


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
def test_no_request_to_a_route_is_a_server_error(operation: Any) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy())
    def ask(case: schemathesis.Case) -> None:
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
            b"{",
            b"[]",
        ),
        *(b'{"shaping": {"green": "x"}}', b'{"words": {}}', b'{"action": {"word": "\\u0000"}}', b'{"a":' * 3000),
    ],
)
def test_no_body_is_a_server_error(url: str, route: str, body: bytes) -> None:
    assert post(f"{url}/{route}", body)[0] < 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
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
