"""Real runs that cannot or shall not go on: each ends in a checkpoint and a sentence, and leaves nothing running."""

import json
import re
from pathlib import Path

import psutil
import pytest

from tests.trainer_box.fake_space import KEY, Answer, FakeSpace
from tests.trainer_box.script.runs import DEADLINE_S, Script, ends, interrupt, records, saved, versions, wait_for_line

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_space_that_is_stuck_ends_training_with_a_checkpoint_from_which_it_goes_on(
    script: Script, space: FakeSpace
) -> None:
    running = script("--max-steps=100000", "--max-staleness=1", "--weight-sync-timeout=3")
    wait_for_line(running, "sync v1 ")
    started = psutil.Process(running.process.pid).children(recursive=True)
    space.fixed["/weights/update"] = Answer(202, {"state": "staging"})
    assert running.wait(DEADLINE_S) == 1, running.output()
    *_, how, last = running.output().splitlines()
    sentence = (
        r"error: sync v\d+: vLLM serves version \d+ after 3 s of waiting, and training may be 1 ahead "
        r'\(--max-staleness\); the last problem: HTTP 202 {"state": "staging"}'
    )
    assert re.fullmatch(sentence, last), last
    step = max(int(path.parent.name.split("-")[1]) for path in Path("out").glob("checkpoint-*/sync.json"))
    assert how == f"checkpoint saved in out/checkpoint-{step}; to go on, add: --resume --run-id r"
    assert "Traceback" not in running.output()
    assert not psutil.wait_procs(started, timeout=10)[1]

    space.fixed.clear()
    spent = max(versions())
    again = script(f"--max-steps={step + 1}", "--resume")
    assert again.wait(DEADLINE_S) == 0, again.output()
    assert max(versions()) > max(spent, saved(step)["version"])
    assert space.status["version"] == max(versions())
    assert records("steps.jsonl")[-1]["step"] == step + 1


def test_a_space_that_stays_away_ends_training_with_a_checkpoint(script: Script, space: FakeSpace) -> None:
    running = script("--max-steps=100000", "--weight-sync-timeout=3")
    wait_for_line(running, "sync v1 ")
    space.fixed["/v1/completions"] = Answer(503, {"error": "dirty"})
    assert running.wait(DEADLINE_S) == 1, running.output()
    *_, how, last = running.output().splitlines()
    assert how.startswith("checkpoint saved in out/checkpoint-"), how
    assert last.startswith(f"error: the rollouts stopped: {space.url} gave no answer for "), last


def test_ctrl_c_once_saves_a_checkpoint_and_says_how_to_go_on(script: Script, space: FakeSpace) -> None:
    running = script("--max-steps=100000")
    wait_for_line(running, "sync v1 ")
    started = interrupt(running)
    assert running.wait(DEADLINE_S) == 130, running.output()
    assert "stopping after this step with a checkpoint; Ctrl-C again stops at once" in running.output()
    (place,) = Path("out").glob("checkpoint-*")
    assert (place / "sync.json").is_file()
    assert f"checkpoint saved in {place}; to go on, add: --resume --run-id r" in running.output()
    newest = max(versions())
    assert space.status["version"] == newest, "the Space has what the checkpoint has"
    assert ends() == {newest: "it was interrupted"}
    assert versions()[newest].fingerprint == json.loads((place / "sync.json").read_text())["fingerprint"]
    assert "Traceback" not in running.output()
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_ctrl_c_twice_ends_at_once_and_leaves_nothing_running(script: Script, space: FakeSpace) -> None:
    space.fixed["/v1/completions"] = Answer(503)  # no samples come, so that no step ends
    running = script("--max-steps=100000")
    wait_for_line(running, "sync v0 ")
    interrupt(running)
    wait_for_line(running, "Ctrl-C again")
    started = interrupt(running)
    assert running.wait(DEADLINE_S) == 130, running.output()
    assert "interrupted" in running.output()
    assert ends() == {0: "it was interrupted"}
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_a_key_that_is_withdrawn_ends_the_training_in_one_sentence(script: Script, space: FakeSpace) -> None:
    running = script("--max-steps=100000")
    wait_for_line(running, "sync v1 ")
    started = psutil.Process(running.process.pid).children(recursive=True)
    space.fixed["/v1/completions"] = Answer(401, {"error": "no or wrong key"})
    assert running.wait(DEADLINE_S) == 1, running.output()
    *_, how, last = running.output().splitlines()
    assert how.startswith("checkpoint saved in out/checkpoint-"), how
    assert last.startswith(f"error: the rollouts stopped: {space.url}/v1/completions answered HTTP 401"), last
    assert "Traceback" not in running.output()
    assert KEY not in running.output()
    assert not psutil.wait_procs(started, timeout=10)[1]
