"""What the trainer's requests to each Space carry; keys and token come from its environment.

Knows which secret is for whom. Who may be told one is in `shared.auth`.
"""

import os

from shared.auth import auth_headers


def vllm_headers(url: str) -> dict[str, str]:
    """For every request to the vLLM Space at `url`. Raises SyncError as `auth_headers` does."""
    return auth_headers(url, os.environ.get("VLLM_API_KEY"), os.environ.get("HF_TOKEN"))


def environment_headers(url: str) -> dict[str, str]:
    """For every request to the environment at `url`. Raises SyncError as `auth_headers` does."""
    return auth_headers(url, os.environ.get("ENV_API_KEY"), os.environ.get("HF_TOKEN"))
