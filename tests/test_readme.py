"""What README tells people to type works, and what it names exists."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from shared.bucket import open_bucket
from tests.space_env.server import running
from trainer_box.demo import DemoArguments
from trainer_box.publisher import Publisher

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_every_make_target_named_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^ *|`)make ([a-z-]+)", README, re.MULTILINE))
    assert {"setup", "demo", "test"} <= named <= targets


def test_every_module_named_can_be_run() -> None:
    named = set(re.findall(r"python -m ([a-z_.]+[a-z])", README))
    assert {"trainer_box", "space_vllm.serve", "space_env.serve", "shared.inspect"} <= named
    assert not [name for name in named if importlib.util.find_spec(name) is None]


def test_the_demo_options_named_exist() -> None:
    line = next(line for line in README.splitlines() if "--no-ui" in line)
    named = {option.replace("-", "_") for option in re.findall(r"--([a-z-]+)", line)}
    assert named == set(vars(DemoArguments()))


def snippet_with(word: str) -> str:
    (snippet,) = [found for found in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if word in found]
    return str(snippet)


def test_the_snippet_that_plays_a_game_plays_it(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as url:
        exec(snippet_with("WordleClient").replace("http://127.0.0.1:7860", url), {})
    task, _, guess = capsys.readouterr().out.splitlines()
    assert task.startswith("Guess the secret 5-letter word")
    assert re.match(r"C.R.A.N.E. 5 left -?0\.\d+ \{'solved': 0.0, 'greens'", guess)


def test_the_snippet_that_reads_a_run_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippet = snippet_with("Follower")
    (name,) = re.findall(r"local:[^\"]+", snippet)
    tensor = torch.randn(8).bfloat16()
    with Publisher(open_bucket(name), "demo") as publisher:
        publisher.publish([("weight", tensor)])
    names: dict[str, dict[str, torch.Tensor]] = {}
    exec(snippet, {}, names)
    assert torch.equal(names["weights"]["weight"], tensor)
