"""Each fault at each endpoint, with the real huggingface_hub and hf_xet clients."""

import os
import threading
from pathlib import Path

import pytest

from shared.errors import BucketError
from tests.hub import Kind, StandIn
from tests.shared.hub_calls import ASKED_BY_HUB_CLIENT, CALLS, HASTY, OLD, QUICK, bucket_at, files_in

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("status", [401, 402, 403, 404, 409])
@pytest.mark.parametrize("on", ["info", "write-token", "batch", "tree"])
def test_a_refusal_is_final(hub: StandIn, tmp_path: Path, on: str, status: int) -> None:
    hub.inject("status", on, status=status, times=0)
    with pytest.raises(BucketError, match=f"cannot .* in bucket user/name: HTTP {status}: "):
        CALLS[on](bucket_at(hub), tmp_path)
    assert hub.count(on) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 503])
@pytest.mark.parametrize("on", CALLS)
def test_what_may_pass_is_tried_again(hub: StandIn, tmp_path: Path, on: str, status: int) -> None:
    hub.inject("status", on, status=status, times=2 if on in ASKED_BY_HUB_CLIENT else 1)
    CALLS[on](bucket_at(hub), tmp_path)
    assert files_in(tmp_path) in ([], ["target"])


@pytest.mark.parametrize("on", ASKED_BY_HUB_CLIENT)
def test_what_does_not_pass_is_an_error_after_as_many_attempts_as_are_allowed(
    hub: StandIn, tmp_path: Path, on: str
) -> None:
    hub.inject("status", on, status=503, times=0)
    with pytest.raises(BucketError, match=r"HTTP 503: the Hub does not answer .* \(3 attempts\)"):
        CALLS[on](bucket_at(hub), tmp_path)
    assert hub.count(on) == QUICK.attempts
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("on", CALLS)
def test_a_stall_ends_at_the_deadline_and_leaves_nothing(hub: StandIn, tmp_path: Path, on: str) -> None:
    hub.inject("stall", on, seconds=600)
    with pytest.raises(BucketError, match="cannot .* in bucket user/name: .* within 0.3 s"):
        CALLS[on](bucket_at(hub, HASTY), tmp_path)
    assert files_in(tmp_path) == []
    CALLS[on](bucket_at(hub), tmp_path)


@pytest.mark.parametrize("on", ["info", "xorb", "xorb-upload"])
def test_stalls_do_not_add_up_to_threads(hub: StandIn, tmp_path: Path, on: str) -> None:
    hub.inject("stall", on, seconds=600, times=0)
    counts = []
    for _ in range(8):
        with pytest.raises(BucketError, match="within 0.3 s"):
            CALLS[on](bucket_at(hub, HASTY), tmp_path)
        counts.append(len(os.listdir("/proc/self/task")))
    assert max(counts) <= counts[0] + 4  # hf_xet's own come and go
    assert not [thread for thread in threading.enumerate() if thread.name == "bucket-call"]


@pytest.mark.parametrize("kind", ["drop", "truncate", "damage"])
@pytest.mark.parametrize("on", [on for on in CALLS if on != "resolve"])
def test_a_broken_answer_is_asked_for_again(hub: StandIn, tmp_path: Path, on: str, kind: Kind) -> None:
    hub.inject(kind, on)
    CALLS[on](bucket_at(hub), tmp_path)
    if files_in(tmp_path):
        assert (tmp_path / "target").read_bytes() == OLD
