"""What the Space makes of several runs, and of one that is begun anew under its id."""

import shutil
from pathlib import Path

import pytest

from shared.bucket import open_bucket
from tests.space_vllm.fakes import Running, equal, make_weights, play, publisher
from trainer_box.publisher import Publisher


def test_a_newer_run_moves_the_space_and_an_older_one_is_forbidden(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "b-first") as old, publisher(tmp_path, "a-second") as new:
            before = old.publish(make_weights(1).items())
            assert (await space.update(before)).status_code == 200
            after = new.publish(make_weights(2).items())
            assert (await space.update(after)).status_code == 200
            refused = await space.update(old.publish(make_weights(1, step=1).items()))
        assert refused.status_code == 403
        assert "older" in refused.json()["error"]
        assert (await space.status())["run_id"] == "a-second"
        assert equal(space.live, make_weights(2))

    play(tmp_path, scenario)


@pytest.mark.parametrize("spent", [-1, 2])
def test_a_run_that_is_begun_anew_under_its_id_is_another_one(tmp_path: Path, spent: int) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            for step in range(5):
                assert (await space.update(out.publish(make_weights(1, step).items()))).status_code == 200
        shutil.rmtree(tmp_path / "run")
        with Publisher(open_bucket(f"local:{tmp_path}"), "run", after=spent) as out:
            for step in range(4):
                manifest = out.publish(make_weights(2, step).items())
                answer = await space.update(manifest)
                assert (answer.status_code, answer.json()["fingerprint"]) == (200, manifest.fingerprint)
                assert equal(space.live, make_weights(2, step))

    play(tmp_path, scenario)
