"""A stand-in for the Hub that this process's client asks, and a small checkout to deploy from."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stamina.instrumentation

from tests.hub import StandIn, stand_in
from trainer_box.deploy import command, keys, waiting

VLLM, ENV, BUCKET = "user/async-rl-vllm", "user/async-rl-env", "user/async-rl-weights"
TOKEN, READ_TOKEN = "hf_writewritewrite", "hf_readreadreadread"
FILES = {
    "Dockerfile.env": "FROM env",
    "Dockerfile.vllm": "FROM vllm",
    "LICENSE": "Apache-2.0",
    "README.md": "the project's own",
    "requirements.lock": "everything",
    "shared/words/LICENSE": "SCOWL",
    "shared/words/tiny.txt": "crane",
    "shared/__init__.py": "",
    "shared/words/__init__.py": "",
    "shared/words/make.py": "made = 1",
    "shared/errors.py": "shared = 1",
    "shared/wordle.py": "from shared.errors import shared\nWORDS = 'shared.words'",
    "shared/deltas.py": "import shared.errors",
    "shared/unused.py": "import shared.deltas",
    "shared/__pycache__/errors.cpython-311.pyc": "compiled",
    "shared/.env": "HF_TOKEN=hf_forgotten",
    "shared/notes.md": "private",
    "space_env/README.md": "---\nsdk: docker\n---\nenv",
    "space_env/requirements.txt": "openenv==0.10.0",
    "space_env/serve.py": "def play():\n    import shared.wordle",
    "space_env/__init__.py": "",
    "space_env/openenv.yaml": "name: wordle",
    "space_env/my_tokens.txt": "hf_forgotten",
    "space_env/build/lib/space_env/__init__.py": "",
    "space_env/build/lib/space_env/serve.py": "stale",
    "space_env/page/__init__.py": "",
    "space_env/page/game.css": "body {}",
    "space_vllm/README.md": "---\nsdk: docker\nmodels:\n  - Qwen/Qwen3-0.6B\n---\nvllm",
    "space_vllm/requirements.txt": "zstandard==0.25.0",
    "space_vllm/pyproject.toml": "[project]",
    "space_vllm/__init__.py": "",
    "space_vllm/serve.py": "from shared import deltas",
    "trainer_box/script.py": "not for Spaces",
}


@pytest.fixture(scope="package")
def running_hub() -> Iterator[StandIn]:
    with stand_in() as hub:
        yield hub


@pytest.fixture
def hub(running_hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Empty. The user's tokens are set, and the keys of the Spaces would be kept in tmp_path."""
    running_hub.empty()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", running_hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("SPACE_HF_TOKEN", READ_TOKEN)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in keys.NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(waiting, "_POLL_S", 0.01)
    monkeypatch.setattr(waiting, "_GRACE_S", 0.05)
    return running_hub


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a checkout has, and what else may lie in one."""
    folder = tmp_path / "checkout"
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    monkeypatch.setattr("trainer_box.deploy.staging.CHECKOUT", folder)
    return folder


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Deploys, and returns what was printed; the exit code has to be the one that is expected."""

    def call(*arguments: str, code: int = 0) -> str:
        given = arguments if "--namespace" in arguments else ("--namespace", "user", *arguments)
        ended = command.main(given)
        printed = capfd.readouterr()
        assert ended == code, printed
        return printed.err if code else printed.out

    yield call
    stamina.instrumentation.set_on_retry_hooks(None)


def space(hub: StandIn, name: str) -> dict[str, Any]:
    found: dict[str, Any] = hub.described()["spaces"][name]
    return found


def kept_keys() -> dict[str, str]:
    text = Path(os.environ["HOME"], ".config/async-rl-spaces/user.env").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())
