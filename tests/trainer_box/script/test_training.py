"""Real runs of a task that is not in the project: trained, resumed, and with a Space that is away for a while."""

import json
from pathlib import Path

import pytest

from tests.trainer_box.fake_space import KEY, Answer, FakeSpace
from tests.trainer_box.script.runs import (
    DEADLINE_S,
    Script,
    fingerprint_in_bucket,
    records,
    saved,
    versions,
    wait_for_line,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_task_outside_the_project_is_trained_and_its_run_goes_on_after_a_resume(
    script: Script, folder: Path, space: FakeSpace
) -> None:
    first = script("--max-steps=2")
    assert first.wait(DEADLINE_S) == 0, first.output()
    assert KEY not in first.output()
    manifests = versions()
    assert sorted(manifests) == [0, 1, 2]
    assert manifests[0].files == (), "the Space has the untouched model already"
    assert [update["version"] for update in space.updates] == [0, 1, 2]
    for manifest in (manifests[1], manifests[2]):
        assert {"reward", "environment/solved", "rewards/Guess", "rewards/bonus", "ratio"} <= manifest.trainer.keys()
        assert manifest.trainer["reward"] == pytest.approx(manifest.trainer["rewards/Guess"] + 0.5)
        assert 0 <= manifest.trainer["environment/solved"] <= manifest.trainer["rewards/Guess"] <= 1
    assert 0 < manifests[1].changed + manifests[2].changed
    rollouts = [json.loads(line) for line in Path("bucket/r/rollouts/000002.jsonl").read_text().splitlines()]
    assert rollouts[0]["messages"][0]["content"] == "Guess a number. It is at most 3."
    assert rollouts[0]["messages"][1]["tool_calls"][0]["function"]["name"] == "guess"
    assert [(step["step"], step["version"]) for step in records("steps.jsonl")] == [(1, 1), (2, 2)]
    assert all(0 <= step["solve_rate"] <= 1 for step in records("steps.jsonl"))
    assert [(sync["version"], sync["kind"], sync["pause_ms"]) for sync in records("syncs.jsonl")] == [
        (version, manifests[version].kind, 50) for version in (0, 1, 2)
    ]
    assert saved(2) == {"run_id": "r", "version": 2, "fingerprint": manifests[2].fingerprint}

    second = script("--max-steps=3", "--resume")
    assert second.wait(DEADLINE_S) == 0, second.output()
    assert "sync v2 is in the bucket already; training goes on from it" in second.output()
    assert [update["version"] for update in space.updates] == [0, 1, 2, 2, 3], "the same weights are not sent again"
    manifests = versions()
    assert sorted(manifests) == [0, 1, 2, 3]
    assert (manifests[3].kind, manifests[3].writer_epoch) == (manifests[2].kind, manifests[2].writer_epoch + 1)
    assert records("steps.jsonl")[-1]["step"] == 3
    assert saved(3) == {"run_id": "r", "version": 3, "fingerprint": fingerprint_in_bucket()}

    Path("out/checkpoint-3/sync.json").unlink()  # as if the trainer had been killed while saving it
    third = script("--max-steps=3", "--resume")
    assert third.wait(DEADLINE_S) == 0, third.output()
    assert "out/checkpoint-3 is passed over: it has no sync.json" in third.output()
    assert [update["version"] for update in space.updates][5:] == [4, 5], "the Space was ahead, and follows"
    manifests = versions()
    assert manifests[4].kind == "anchor"
    assert manifests[4].fingerprint == manifests[2].fingerprint, "training starts from the weights it stopped at"
    assert saved(3) == {"run_id": "r", "version": 5, "fingerprint": fingerprint_in_bucket()}

    place = Path("out/checkpoint-3/model.safetensors")
    damaged = bytearray(place.read_bytes())
    damaged[-1] ^= 0xFF
    place.write_bytes(damaged)
    fourth = script("--max-steps=4", "--resume")
    assert fourth.wait(DEADLINE_S) == 1, fourth.output()
    last = fourth.output().splitlines()[-1]
    assert last.startswith("error: the weights loaded from out/checkpoint-3 have fingerprint "), last
    assert sorted(versions()) == [0, 1, 2, 3, 4, 5]


def test_a_space_that_is_away_for_some_steps_costs_nothing(script: Script, space: FakeSpace) -> None:
    running = script("--max-steps=8")
    wait_for_line(running, "sync v1 ")
    for path in ("/weights/update", "/v1/completions"):
        space.fixed[path] = Answer(503, "<html>restarting</html>")
    wait_for_line(running, "rollouts wait for")
    wait_for_line(running, "is published, but not served yet: HTTP 503 <html>restarting</html>")
    space.fixed.clear()
    assert running.wait(DEADLINE_S) == 0, running.output()
    assert "rollouts go on with" in running.output()
    assert [step["step"] for step in records("steps.jsonl")] == list(range(1, 9))
    newest = max(versions())
    assert space.status["version"] == newest
    assert fingerprint_in_bucket() == versions()[newest].fingerprint == saved(8)["fingerprint"]


def test_with_accumulated_gradients_and_a_sync_every_second_step_the_end_is_served_too(
    script: Script, space: FakeSpace
) -> None:
    running = script("--max-steps=5", "--weight-sync-steps=2", "--gradient-accumulation-steps=2")
    assert running.wait(DEADLINE_S) == 0, running.output()
    assert [step["step"] for step in records("steps.jsonl")] == [1, 2, 3, 4, 5]
    assert [step["version"] for step in records("steps.jsonl")] == [0, 1, 1, 2, 2]
    newest = max(versions())
    assert space.status["version"] == newest
    assert fingerprint_in_bucket() == versions()[newest].fingerprint == saved(5)["fingerprint"]
