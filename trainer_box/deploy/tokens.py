"""The two tokens of the Hub, from the environment only, and whether they can be what they are for.

Knows what a token must look like and may do, as the Hub tells it. Their values are in no sentence.
"""

from collections.abc import Mapping

from shared.auth import fits_a_header
from shared.errors import SyncError
from trainer_box.deploy.failures import TOKENS
from trainer_box.deploy.hub import Account


def writer(environment: Mapping[str, str]) -> str:
    """Raises SyncError. What `hf auth login` has stored is not used: it may be of another account, and do less."""
    if not (token := environment.get("HF_TOKEN", "")):
        raise SyncError(f"HF_TOKEN is not set; make a token of type Write at {TOKENS}, and export it as HF_TOKEN")
    return checked("HF_TOKEN", token)


def reader(environment: Mapping[str, str], writer: str) -> str:
    """Raises SyncError."""
    if not (token := environment.get("SPACE_HF_TOKEN", "")):
        raise SyncError(
            "SPACE_HF_TOKEN is not set: the vLLM Space needs a token of its own, which may read bucket and model and "
            f"nothing else; make one at {TOKENS}"
        )
    if token == writer:
        raise SyncError(
            "SPACE_HF_TOKEN is the same as HF_TOKEN, so that whoever gets into the Space could write; make one that "
            f"may only read at {TOKENS}"
        )
    return checked("SPACE_HF_TOKEN", token)


def checked(name: str, secret: str) -> str:
    """Raises SyncError, without it, for a secret that no HTTP header can hold, or that white space is in."""
    if not fits_a_header(secret) or secret.split() != [secret]:
        raise SyncError(f"{name} holds a space, a line break or another character that no key has; set it anew")
    return secret


def check_writer(account: Account, namespace: str) -> None:
    """Raises SyncError for another one's namespace, and for a token that may only read."""
    if namespace not in account.namespaces:
        raise SyncError(
            f"HF_TOKEN is of {account.name}, whose namespaces are {', '.join(account.namespaces)}, not {namespace}; "
            "choose one of these with --namespace, or set another HF_TOKEN"
        )
    if account.role == "read":
        raise SyncError(f"HF_TOKEN may only read; make one of type Write, or with write access, at {TOKENS}")


def check_reader(account: Account) -> None:
    """Raises SyncError when it may write, as far as the Hub tells."""
    writing = ["everything"] if account.role == "write" else [one for one in account.permissions if "write" in one]
    if writing:
        raise SyncError(
            f"SPACE_HF_TOKEN may write ({', '.join(writing)}), and so could whoever gets into the Space; make one "
            f"that may only read at {TOKENS}"
        )
