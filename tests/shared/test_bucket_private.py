"""Buckets are made private, and a public one is not used, with the real client against the stand-in."""

import json

import pytest

from shared.bucket.private import ensure_private, is_readable
from shared.errors import BucketError
from tests.hub import StandIn
from tests.shared.hub_calls import NAME, QUICK, TOKEN


def test_a_bucket_that_is_missing_is_made_private(hub: StandIn) -> None:
    hub.inject("status", "bucket", status=404)
    assert ensure_private(NAME, TOKEN, QUICK)
    assert hub.described()["buckets"] == {NAME: True}
    assert not ensure_private(NAME, TOKEN, QUICK)
    assert hub.count("bucket-create") == 1


def test_a_public_bucket_is_refused_with_how_to_mend_it(hub: StandIn) -> None:
    hub.change(NAME, is_bucket=True, private=False)
    with pytest.raises(BucketError, match=f"bucket {NAME} is public.*hf buckets settings {NAME} --private"):
        ensure_private(NAME, TOKEN, QUICK)
    assert hub.count("bucket-create") == 0


def test_a_bucket_that_the_hub_makes_public_is_refused(hub: StandIn) -> None:
    hub.inject("status", "bucket", status=404)
    hub.inject("status", "bucket-create", status=200, body=json.dumps({"url": f"{hub.url}/buckets/{NAME}"}))
    hub.change(NAME, is_bucket=True, private=False)
    with pytest.raises(BucketError, match="is public"):
        ensure_private(NAME, TOKEN, QUICK)


@pytest.mark.parametrize("status", [401, 402, 403, 409])
def test_a_refusal_to_make_it_is_a_sentence(hub: StandIn, status: int) -> None:
    hub.inject("status", "bucket", status=404)
    hub.inject("status", "bucket-create", status=status)
    with pytest.raises(BucketError, match=f"cannot make bucket {NAME}: HTTP {status}: "):
        ensure_private(NAME, TOKEN, QUICK)


def test_whether_a_token_may_read_a_bucket_is_asked_with_that_token(hub: StandIn) -> None:
    assert is_readable(NAME, TOKEN, QUICK)
    assert not is_readable(NAME, "hf_other", QUICK)
    hub.inject("status", "bucket", status=404)
    assert not is_readable(NAME, TOKEN, QUICK)
