"""What the Hub refuses when Spaces are made, in a sentence with the remedy. Knows statuses and remedies, no calls."""

from collections.abc import Mapping

import httpx2
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from shared.bucket import failures
from shared.errors import SyncError

TOKENS = "https://huggingface.co/settings/tokens"
REMEDIES = {
    **failures.REMEDIES,
    401: (
        "HF_TOKEN is missing, has expired, or may not manage Spaces (one that `hf auth login` made may not); make one "
        f"of type Write at {TOKENS}"
    ),
    402: (
        "it is not paid for; Docker Spaces need a PRO, Team or Enterprise plan (https://huggingface.co/pricing), and "
        "GPUs a payment method (https://huggingface.co/settings/billing)"
    ),
    403: f"HF_TOKEN may not do this; give it write access to this namespace's repositories and buckets at {TOKENS}",
    404: "there is no such thing, or it is private and HF_TOKEN may not see it; check --namespace and HF_TOKEN",
    409: "something of that name is there already, or is being changed; look at it on the Hub, or try again later",
    410: "it is gone for good; name another --namespace",
    429: "too many requests; run the same command again later, it goes on where it stopped",
}
READER_REMEDIES = {
    **failures.REMEDIES,
    401: f"SPACE_HF_TOKEN has expired, or is none; make one that may read bucket and model at {TOKENS}",
}
_SCHEDULING = "scheduling failure:"
_NO_CAPACITY = "no such machine is free; run the same command again later, or name another with --hardware"


def translated(error: Exception, what: str, remedies: Mapping[int, str] = REMEDIES) -> SyncError:
    """A PassingError where another attempt may help."""
    if isinstance(error, LocalTokenNotFoundError):
        return SyncError(f"{what}: {remedies[401]}")
    if isinstance(error, httpx2.HTTPStatusError | HfHubHTTPError):
        if is_no_capacity(told := failures.reason_of(error.response)):
            return no_capacity(what, told)
    return failures.translated(error, what, remedies)


def is_no_capacity(told: str) -> bool:
    """Whether the Hub's own words, not ours, say that it has no machine; a program may speak of capacities too."""
    return told.strip().lower().startswith(_SCHEDULING)


def no_capacity(what: str, told: str) -> SyncError:
    return SyncError(f"{what}: {_NO_CAPACITY} (the Hub says: {failures.plain(told)})")
