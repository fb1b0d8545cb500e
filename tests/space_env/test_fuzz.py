"""Requests made from the server's own description of its HTTP routes: whatever is sent, none is answered with 5xx.

Left out are OpenEnv's routes for tasks, which answer 501 in every environment that has none.
"""

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from space_env.app import environment_app
from space_env.sessions import Desk

schema = schemathesis.openapi.from_asgi("/openapi.json", environment_app(None, Desk())).exclude(tag="Task API")


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_to_a_route_of_ours_is_a_server_error(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=[not_a_server_error])
