"""Each Space is told its own key and the Hub's token, from the environment and nothing else."""

from collections.abc import Callable

import pytest

from shared.errors import SyncError
from trainer_box.headers import environment_headers, vllm_headers

SPACE = "https://user-space.hf.space"
BOTH = pytest.mark.parametrize(
    ("headers", "name"), [(vllm_headers, "VLLM_API_KEY"), (environment_headers, "ENV_API_KEY")]
)
Headers = Callable[[str], dict[str, str]]


@BOTH
def test_a_space_gets_its_own_key_and_the_token_of_the_hub(
    headers: Headers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for secret in ("VLLM_API_KEY", "ENV_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(secret, raising=False)
    assert headers(SPACE) == {}
    monkeypatch.setenv(name, "key")
    assert headers(SPACE) == {"Authorization": "Bearer key"}
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    assert headers(SPACE) == {"Authorization": "Bearer key", "X-HF-Authorization": "Bearer hf_token"}


@BOTH
def test_a_space_is_not_asked_in_the_clear(headers: Headers, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "key")
    with pytest.raises(SyncError, match="ask it with https"):
        headers(SPACE.replace("https", "http"))
