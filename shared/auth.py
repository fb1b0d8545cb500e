"""The headers with which one unit asks another: the unit's own key, and what the proxy of a private Space wants.

Knows header names, and which addresses are Spaces. Where keys come from is for the callers; they are never part of a
message.
"""

from urllib.parse import urlsplit

from shared.errors import SyncError

_SPACES = ".hf.space"


def auth_headers(url: str, key: str | None, hub_token: str | None) -> dict[str, str]:
    """The Hub token goes to Spaces only, never to another host, and nothing goes to a Space in the clear.

    Raises SyncError for a key that no header can hold, for what is no address, and for a Space's that is not https.
    """
    if is_space(url) and urlsplit(url).scheme != "https":
        raise SyncError(f"{url} is a Space: ask it with https, since keys would go over the network in the clear")
    headers = {}
    if key:
        headers["Authorization"] = bearer(key, f"the key for {url}")
    if hub_token and is_space(url):
        headers["X-HF-Authorization"] = bearer(hub_token, "HF_TOKEN")
    return headers


def is_address(url: str) -> bool:
    """Whether a unit could be there: http or https, a host that has a name, and a port if any."""
    try:
        return bool(_host(url)) and urlsplit(url).scheme in ("http", "https")
    except SyncError:
        return False


def is_space(url: str) -> bool:
    """Whether the Hub's proxy is in front of it."""
    return _host(url).removesuffix(".").endswith(_SPACES)


def _host(url: str) -> str:
    """In lower case. Raises SyncError."""
    try:
        address = urlsplit(url)
        host, _ = (address.hostname or "").encode("idna").decode(), address.port
    except ValueError as error:  # UnicodeError is one
        raise SyncError(f"{url!r} is not an address: {error}") from error
    return host.lower()


def bearer(secret: str, what: str) -> str:
    """The header's value. Raises SyncError, which names `what` and not the secret, when no header can hold it."""
    if not fits_a_header(secret):
        raise SyncError(
            f"{what} holds a line break, white space around it or another character that no key has; set it anew"
        )
    return f"Bearer {secret}"


def fits_a_header(secret: str) -> bool:
    """An HTTP client would cut any other, or repeat it in its error."""
    return secret.isascii() and secret.isprintable() and secret == secret.strip()
