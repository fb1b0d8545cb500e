import pytest

from shared.auth import auth_headers
from shared.errors import SyncError

SPACE = "https://user-vllm.hf.space/"


def test_a_space_is_asked_with_its_key_and_the_hub_token() -> None:
    headers = {"Authorization": "Bearer key", "X-HF-Authorization": "Bearer hf_token"}
    assert auth_headers(SPACE, "key", "hf_token") == headers
    assert auth_headers(SPACE, None, None) == {}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "https://hf.space.example.com", "https://evil-hf.space.io", "https://nothf.space"]
)
def test_the_hub_token_goes_to_no_other_host(url: str) -> None:
    assert auth_headers(url, "key", "hf_token") == {"Authorization": "Bearer key"}


@pytest.mark.parametrize(
    "url",
    ["http://user-vllm.hf.space", "HTTP://User-vLLM.HF.Space:80/", "ws://user-vllm.hf.space", "http://u-v.hf.space."],
)
def test_nothing_goes_to_a_space_in_the_clear(url: str) -> None:
    for keys in (("key", None), (None, "hf_token"), (None, None)):
        with pytest.raises(SyncError, match="https") as caught:
            auth_headers(url, *keys)
        assert "hf_token" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://host:port", "https://" + "x" * 64 + ".hf.space", "http://a..b"]
)
def test_what_is_no_address_is_told_in_a_sentence(url: str) -> None:
    with pytest.raises(SyncError, match="is not an address"):
        auth_headers(url, "key", "hf_token")


@pytest.mark.parametrize("secret", ["secret\n", "secr\u00e9t", "sec\tret", " secret", "secret "])
def test_a_key_that_no_header_can_carry_is_refused_without_being_told(secret: str) -> None:
    for keys in ((secret, None), (None, secret)):
        with pytest.raises(SyncError, match="line break") as caught:
            auth_headers(SPACE, *keys)
        assert "sec" not in str(caught.value).replace(SPACE, "")
