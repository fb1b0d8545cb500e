"""Buckets on the Hub are made private, and one that is public is not used: whoever finds it could read the weights."""

from collections.abc import Collection

from huggingface_hub import HfApi

from shared.bucket.asking import asked, made_once, seen
from shared.bucket.client import connect
from shared.bucket.retries import PATIENT, Limits
from shared.errors import BucketError


def ensure_private(name: str, token: str | None, limits: Limits = PATIENT) -> bool:
    """Make the bucket `user/name` when there is none; whether that was so. Raises BucketError when it is public."""
    client = connect(token)
    created = is_private(name, client, limits) is None
    if created:
        make = made_once(lambda: client.create_bucket(name, private=True))
        asked(f"cannot make bucket {name}", make, limits)
    if is_private(name, client, limits) is False:
        raise BucketError(
            f"bucket {name} is public, so that everybody could read the weights; make it private "
            f"(hf buckets settings {name} --private), or choose another one"
        )
    return created


def is_readable(name: str, token: str | None, limits: Limits = PATIENT) -> bool:
    """Whether this token may see the bucket, which is there."""
    return is_private(name, connect(token), limits, unseen=(401, 403, 404)) is not None


def is_private(name: str, client: HfApi, limits: Limits, unseen: Collection[int] = (404,)) -> bool | None:
    """None when there is no such bucket, or the token may not see it: where the Hub answers a status of `unseen`."""
    info = asked(f"cannot look at bucket {name}", lambda: seen(lambda: client.bucket_info(name), unseen), limits)
    return None if info is None else bool(info.private)
