"""A bucket on the stand-in, and what makes its clients ask each of the Hub's endpoints."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub.utils._xet import abort_xet_session

from shared.bucket.client import connect
from shared.bucket.hub import HubBucket
from shared.bucket.retries import Limits
from tests.hub import StandIn

MB = 1_000_000
NAME = "user/name"
TOKEN = "hf_secretsecretsecret"
OLD = os.urandom(3 * MB)
QUICK = Limits(answer=4.0, transfer=8.0, listing=0.3, attempts=3, retrying=20.0, first_wait=0.01, longest_wait=1.5)
HASTY = replace(QUICK, answer=0.3, transfer=0.3, bytes_per_second=math.inf, attempts=1)


@contextmanager
def asked_here(hub: StandIn, cache: Path) -> Iterator[None]:
    """This process takes it for the Hub, with clients that do not wait long before they try again."""
    quick = {"TELEMETRY_ENABLED": "0", "CLIENT_RETRY_MAX_ATTEMPTS": "1", "CLIENT_RETRY_BASE_DELAY": "10ms"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        for name, value in hub.environment(cache).items():
            patch.setenv(name, value)
        for name, value in quick.items():
            patch.setenv(f"HF_XET_{name}", value)
        abort_xet_session()  # the next one reads the environment
        try:
            yield
        finally:
            abort_xet_session()


def bucket_at(hub: StandIn, limits: Limits = QUICK, token: str = TOKEN) -> HubBucket:
    return HubBucket(NAME, connect(token), limits=limits)


def write(bucket: HubBucket, folder: Path) -> None:
    bucket.write("r/new", os.urandom(5000))


def replace_pointer(bucket: HubBucket, folder: Path) -> None:
    bucket.write("r/latest.json", os.urandom(50), replace=True)


def download(bucket: HubBucket, folder: Path) -> None:
    bucket.download("r/old", folder / "target")
    assert (folder / "target").read_bytes() == OLD


def list_files(bucket: HubBucket, folder: Path) -> None:
    assert bucket.files("r") == ["r/old"]


def delete(bucket: HubBucket, folder: Path) -> None:
    bucket.delete(["r/old"])


# One call per endpoint that asks it, among others.
CALLS: dict[str, Callable[[HubBucket, Path], None]] = {
    "info": download,
    "resolve": download,
    "read-token": download,
    "reconstruction": download,
    "xorb": download,
    "write-token": write,
    "xorb-upload": write,
    "shard": write,
    "batch": delete,
    "tree": list_files,
}
ASKED_BY_HUB_CLIENT = ("info", "resolve", "batch", "tree")  # the others by hf_xet


def files_in(folder: Path) -> list[str]:
    """A part of a download that was left behind would be one of them."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())
