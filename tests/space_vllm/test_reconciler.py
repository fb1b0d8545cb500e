"""Syncs from a real bucket folder into a fake engine, asked for over HTTP as a trainer does."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from shared import fingerprint, layout
from shared.types import Manifest
from tests.space_vllm.fakes import Running, equal, make_weights, play, publisher


def damage(folder: Path, manifest: Manifest) -> None:
    file = folder / manifest.path
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


def announce(folder: Path, manifest: Manifest) -> None:
    """A manifest beside the published ones, for a file that is there."""
    (folder / layout.manifest(manifest.run_id, manifest.version)).write_bytes(manifest.to_json())


def test_without_a_run_the_recounted_base_model_is_served_as_version_0(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        status = await space.status()
        assert (status["run_id"], status["version"], status["state"]) == (None, 0, "serving")
        assert status["fingerprint"] == fingerprint.to_text(fingerprint.fingerprint(make_weights(0)))

    play(tmp_path, scenario)


def test_health_is_503_when_the_engine_has_ended(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        space.client.errored = True
        assert (await space.http.get("/health")).status_code == 503

    play(tmp_path, scenario)


def test_an_update_is_live_when_it_is_answered(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        space.client.in_flight = 3
        with publisher(tmp_path, "run") as out:
            first = await space.update(out.publish(make_weights(1).items()))
            second = await space.update(manifest := out.publish(make_weights(1, step=1).items()))
        assert (first.status_code, first.json()["kind"]) == (200, "anchor")
        assert (second.status_code, second.json()["version"], second.json()["kind"]) == (200, 1, "delta")
        assert equal(space.live, make_weights(1, step=1))
        status = await space.status()
        assert (status["run_id"], status["version"], status["fingerprint"]) == ("run", 1, manifest.fingerprint)
        assert (status["last_sync"]["nbytes"], status["last_sync"]["reprefilled"]) == (manifest.nbytes, 3)
        assert status["counters"]["syncs"] == 2
        assert space.client.weight_version == "run/1"
        assert not space.client.paused

    play(tmp_path, scenario)


def test_missed_versions_are_caught_up_with_one_pause_each(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            published = [out.publish(make_weights(1, step).items()) for step in range(4)]
        assert [manifest.kind for manifest in published] == ["anchor", "delta", "delta", "delta"]
        answer = await space.update(published[-1])
        assert (answer.status_code, answer.json()["version"]) == (200, 3)
        assert equal(space.live, make_weights(1, step=3))
        assert space.client.calls.count("pause") == 4

    play(tmp_path, scenario)


def test_a_version_is_applied_once_however_often_it_arrives(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            published = [out.publish(make_weights(1, step).items()) for step in range(2)]
        answers = await asyncio.gather(*(space.update(manifest) for manifest in [*published, *published]))
        later = await space.update(published[0])
        assert [answer.status_code for answer in [*answers, later]] == [200] * 5
        assert later.json()["version"] == 1
        assert space.client.calls.count("delta_apply") == 2

    play(tmp_path, scenario)


def test_a_run_that_starts_from_the_base_model_needs_no_apply(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            anchor = await space.update(out.publish(make_weights(0).items()))
            assert (anchor.status_code, anchor.json()["version"]) == (200, 0)
            assert "delta_apply" not in space.client.calls
            delta = await space.update(out.publish(make_weights(0, step=1).items()))
        assert (delta.status_code, space.client.calls.count("delta_apply")) == (200, 1)
        assert equal(space.live, make_weights(0, step=1))

    play(tmp_path, scenario)


def test_with_no_time_to_wait_the_answer_is_202_and_the_update_goes_on(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            answer = await space.update(out.publish(make_weights(1).items()), wait=0)
        assert (answer.status_code, answer.json()["version"]) == (202, 0)
        async with asyncio.timeout(10):
            while (await space.status(version=0, wait=5))["run_id"] != "run":
                await asyncio.sleep(0.02)

    play(tmp_path, scenario)


def test_the_status_waits_for_a_version(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            waiting = asyncio.create_task(space.status(version=1, wait=10))
            for step in range(2):
                await space.update(out.publish(make_weights(1, step).items()))
        assert (await waiting)["version"] == 1
        assert (await space.status(version=9, wait=0))["version"] == 1

    play(tmp_path, scenario)


def test_a_message_for_what_does_not_exist_stands_in_nobody_elses_way(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(make_weights(1).items()))
            good = out.publish(make_weights(1, step=1).items())
            damage(tmp_path, bad := out.publish(make_weights(1, step=2).items()))
        messages = (replace(good, version=9), bad, good, replace(good, run_id="none"))
        answers = await asyncio.gather(*map(space.update, messages))
        assert [answer.status_code for answer in answers] == [409, 409, 200, 409]
        assert "no manifest of version 9" in answers[0].json()["error"]
        assert "step_000002" in answers[1].json()["error"]
        assert equal(space.live, make_weights(1, step=1))

    play(tmp_path, scenario)


def test_files_of_a_way_are_downloaded_ahead_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    async def downloads(count: int) -> None:
        async with asyncio.timeout(10):
            while len(list(folder.glob("sync-*"))) != count:
                await asyncio.sleep(0.02)

    async def scenario(space: Running) -> None:
        with publisher(tmp_path / "bucket", "run") as out:
            await space.update(out.publish(make_weights(1).items()))
            for step in range(1, 4):
                newest = out.publish(make_weights(1, step).items())
        gate = space.client.held["delta_stage"] = asyncio.Event()
        assert (await space.update(newest, wait=0.2)).status_code == 202
        await downloads(2)
        gate.set()
        assert (await space.update(newest)).status_code == 200
        await downloads(0)

    play(tmp_path / "bucket", scenario)


async def assert_refused_and_recovering(space: Running, folder: Path, refused: Manifest) -> None:
    """`refused` is answered with 409 while version 0 of run `run` stays live; an anchor then goes through."""
    answer = await space.update(refused)
    assert answer.status_code == 409
    assert (answer.json()["served_version"], answer.json()["need"]) == (0, "anchor")
    status = await space.status()
    assert (status["state"], status["last_error"]) == ("serving", answer.json()["error"])
    assert equal(space.live, make_weights(1))
    assert not space.client.paused
    assert (await space.http.get("/health")).status_code == 200
    with publisher(folder, "run") as out:
        good = await space.update(out.publish(make_weights(2).items()))
    assert good.status_code == 200
    assert equal(space.live, make_weights(2))


@pytest.mark.parametrize(
    "fault",
    ["damaged file", "missing file", "missing manifest", "wrong base", "another version's file", "another path"],
)
def test_an_update_that_no_path_leads_to_is_refused_and_the_next_good_one_goes_through(
    tmp_path: Path, fault: str
) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(make_weights(1).items()))
            delta = out.publish(make_weights(1, step=1).items())
        if fault == "damaged file":
            damage(tmp_path, delta)
        elif fault == "missing file":
            (tmp_path / delta.path).unlink()
        elif fault == "missing manifest":
            delta = replace(delta, version=2)
        elif fault == "wrong base":
            announce(tmp_path, delta := replace(delta, version=2, base_fingerprint="0123456789abcdef"))
        elif fault == "another version's file":
            announce(tmp_path, delta := replace(delta, version=2))
        else:
            (other,) = delta.files
            delta = replace(delta, files=(replace(other, path="run/deltas/step_000009.safetensors"),))
        await assert_refused_and_recovering(space, tmp_path, delta)

    play(tmp_path, scenario)


def test_a_manifest_that_was_wrong_is_read_anew_once_it_is_repaired(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(make_weights(1).items()))
            delta = out.publish(make_weights(1, step=1).items())
        announce(tmp_path, replace(delta, base_fingerprint="0123456789abcdef"))
        assert (await space.update(delta)).status_code == 409
        announce(tmp_path, delta)
        assert (await space.update(delta)).status_code == 200
        assert equal(space.live, make_weights(1, step=1))

    play(tmp_path, scenario)


def test_after_a_loader_failed_half_way_the_old_version_is_put_back(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(make_weights(1).items()))
            delta = out.publish(make_weights(1, step=1).items())
        space.client.model.failures = 1
        await assert_refused_and_recovering(space, tmp_path, delta)

    play(tmp_path, scenario)


@pytest.mark.parametrize("call", ["pause", "delta_apply", "resume"])
def test_a_call_that_vllm_fails_is_answered_503_and_the_server_comes_back_by_itself(tmp_path: Path, call: str) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(make_weights(1).items()))
            delta = out.publish(make_weights(1, step=1).items())
        space.client.broken[call] = RuntimeError("the engine broke")
        first = await space.update(delta)
        assert first.status_code == 503
        await space.healthy()
        assert (await space.update(delta)).status_code == 200
        assert equal(space.live, make_weights(1, step=1))
        assert not space.client.paused

    play(tmp_path, scenario)


def test_on_start_the_newest_run_is_caught_up_before_health(tmp_path: Path) -> None:
    with publisher(tmp_path, "old") as out:
        out.publish(make_weights(3).items())
    with publisher(tmp_path, "new") as out:
        for step in range(3):
            out.publish(make_weights(1, step).items())

    async def scenario(space: Running) -> None:
        assert equal(space.live, make_weights(1, step=2))
        assert (await space.status())["run_id"] == "new"

    play(tmp_path, scenario)


def test_a_set_run_is_followed_although_a_newer_one_exists(tmp_path: Path) -> None:
    with publisher(tmp_path, "mine") as out:
        out.publish(make_weights(1).items())
    with publisher(tmp_path, "newer") as out:
        other = out.publish(make_weights(2).items())

    async def scenario(space: Running) -> None:
        assert equal(space.live, make_weights(1))
        assert (await space.update(other)).status_code == 403

    play(tmp_path, scenario, run_id="mine")


def test_on_start_a_damaged_newest_version_leaves_the_one_before_it_served(tmp_path: Path) -> None:
    with publisher(tmp_path, "run") as out:
        out.publish(make_weights(1).items())
        damage(tmp_path, out.publish(make_weights(1, step=1).items()))

    async def scenario(space: Running) -> None:
        status = await space.status()
        assert (status["version"], status["state"]) == (0, "serving")
        assert "step_000001" in status["last_error"]
        assert equal(space.live, make_weights(1))

    play(tmp_path, scenario)


def test_on_start_an_unreachable_bucket_is_tried_until_it_answers(tmp_path: Path) -> None:
    folder = tmp_path / "bucket"
    folder.write_text("a file where the folder should be")

    async def scenario(space: Running) -> None:
        async with asyncio.timeout(10):
            while (await space.status())["counters"]["failed"] < 2:
                await asyncio.sleep(0.02)
        assert (await space.http.get("/health")).status_code == 503
        assert (await space.http.get("/v1/models")).status_code == 503
        assert (await space.status())["state"] == "catching_up"
        folder.unlink()
        with publisher(folder, "run") as out:
            out.publish(make_weights(1).items())
        await space.healthy()
        assert equal(space.live, make_weights(1))

    play(folder, scenario, healthy=False)
