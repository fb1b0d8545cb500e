"""A stand-in for the Hub with one file in it, for the tests of the bucket on the Hub."""

from collections.abc import Iterator

import pytest

from tests.hub import StandIn, stand_in
from tests.shared.hub_calls import NAME, OLD, TOKEN, asked_here, bucket_at


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """This process's Hub."""
    cache = tmp_path_factory.mktemp("xet")
    with stand_in(token=TOKEN, bucket=NAME) as hub, asked_here(hub, cache):
        yield hub


@pytest.fixture
def hub(running_hub: StandIn) -> StandIn:
    """It holds r/old, and has answered nothing yet."""
    running_hub.empty()
    bucket_at(running_hub).write("r/old", OLD)
    running_hub.clear()
    return running_hub
