"""A stand-in for the Hub with one file in it, for the tests of the bucket on the Hub."""

from collections.abc import Iterator

import pytest
from huggingface_hub.utils._xet import abort_xet_session

from tests.hub import StandIn, stand_in
from tests.shared.hub_calls import NAME, OLD, TOKEN, bucket_at


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """This process's Hub, asked by clients that do not wait long before they try again."""
    quick = {"TELEMETRY_ENABLED": "0", "CLIENT_RETRY_MAX_ATTEMPTS": "1", "CLIENT_RETRY_BASE_DELAY": "10ms"}
    with stand_in(token=TOKEN, bucket=NAME) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        for name, value in hub.environment(tmp_path_factory.mktemp("xet")).items():
            patch.setenv(name, value)
        for name, value in quick.items():
            patch.setenv(f"HF_XET_{name}", value)
        abort_xet_session()  # the next one reads the environment
        yield hub
    abort_xet_session()


@pytest.fixture
def hub(running_hub: StandIn) -> StandIn:
    """It holds r/old, and has answered nothing yet."""
    running_hub.empty()
    bucket_at(running_hub).write("r/old", OLD)
    running_hub.clear()
    return running_hub
