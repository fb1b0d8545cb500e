import pytest

from shared.bucket.client import connect, ending_in
from tests.hub import StandIn
from tests.shared.hub_calls import NAME, TOKEN


def test_a_call_that_is_out_of_time_sends_nothing(hub: StandIn) -> None:
    with pytest.raises(TimeoutError), ending_in(-1):
        list(connect(TOKEN).get_bucket_paths_info(NAME, ["r/old"]))
    assert hub.count("info") == 0


def test_a_request_times_out_with_its_call(hub: StandIn) -> None:
    hub.inject("stall", "info", seconds=600)
    with pytest.raises(TimeoutError), ending_in(1):
        list(connect(TOKEN).get_bucket_paths_info(NAME, ["r/old"]))
    assert hub.count("info") == 1


def test_a_time_that_has_ended_is_no_matter_to_the_next_call(hub: StandIn) -> None:
    with ending_in(-1):
        pass
    (item,) = connect(TOKEN).get_bucket_paths_info(NAME, ["r/old"])
    assert item.path == "r/old"
