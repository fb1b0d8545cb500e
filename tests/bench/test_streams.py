"""What is read off streams of tokens: rates, gaps, and what a pause cost."""

import time

import pytest

from tests.bench.pause import pause_of
from tests.bench.streams import Got, Streams

STREAMS = Streams(
    count=2,
    prompt=10,
    got=[Got(1.0, 0, 1, 11), Got(1.5, 1, 1, 11), Got(2.0, 0, 1, 12), Got(6.0, 1, 2, 13), Got(6.5, 0, 1, 13)],
)


def test_tokens_are_counted_from_the_start_to_before_the_end() -> None:
    assert STREAMS.tokens(1.0, 6.0) == 3


def test_what_requests_hold_is_their_newest_count_each() -> None:
    assert STREAMS.held_at(5.0) == 12 + 11


def test_the_longest_gap_is_of_one_stream_and_ends_in_the_time() -> None:
    assert STREAMS.longest_gap_s(5.0, 7.0) == 4.5
    assert STREAMS.longest_gap_s(1.0, 5.0) == 1.0


def test_a_pause_counts_from_the_idle_engine_and_what_is_around_it_apart() -> None:
    now = time.monotonic()
    steady = [Got(now - 20 + n / 10, 0, 1, 10 + n) for n in range(100)]  # 10 tokens per second
    streams = Streams(1, 10, [*steady, Got(now - 5, 0, 1, 110)])
    pause, resume = {"began": now - 10, "ended": now - 9}, {"began": now - 6.5, "ended": now - 6}
    found = pause_of(streams, (now - 20, now - 10), now - 10, pause, resume)
    assert (found.drain_ms, found.pause_ms, found.first_token_ms) == pytest.approx((1000, 3000, 1000))
    assert found.worst_gap_ms == pytest.approx(5100)
    assert found.refilled_tokens == 109
    assert found.lost_tokens == pytest.approx(99, abs=1)


def test_a_load_that_never_comes_back_is_no_measurement() -> None:
    now = time.monotonic()
    streams = Streams(1, 10, [Got(now - 20, 0, 1, 11)])
    with pytest.raises(AssertionError, match="no token came"):
        pause_of(streams, (now - 21, now - 19), now - 10, {"began": now - 9, "ended": now - 8}, {"ended": now - 7})
