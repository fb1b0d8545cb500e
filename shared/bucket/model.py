"""The files of a model that is not in a bucket: in a folder of this machine, or in a repository on the Hub."""

from pathlib import Path

import huggingface_hub

from shared.bucket.failures import plain
from shared.errors import ChainError


def model_files(repo: str, commit: str) -> list[Path]:
    """The safetensors files of a model, sorted. Raises ChainError when they cannot be had."""
    folder = Path(repo)
    if not folder.is_absolute():
        folder = _download(repo, commit)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ChainError(f"there are no safetensors files of model {repo!r} in {folder}")
    return files


def _download(repo: str, commit: str) -> Path:
    try:
        return Path(huggingface_hub.snapshot_download(repo, revision=commit or None, allow_patterns=["*.safetensors"]))
    except Exception as error:  # huggingface_hub checks no answer: one of another shape raises anything in it
        reason = plain(str(error)) or type(error).__name__
        raise ChainError(f"model {repo!r} at commit {commit or 'main'} cannot be had: {reason}") from None
