"""Ways to a version over a fake engine: cheapest first, from the base model for nothing, and never back."""

import asyncio
from pathlib import Path

import xxhash

from shared import fingerprint, layout
from shared.bits import bits
from shared.bucket import open_bucket
from shared.types import Base, Manifest, Pointer, Run, now
from tests.shared.extra_anchor import add_anchor
from tests.shared.weights import model as large_model
from tests.shared.weights import nudge, same
from tests.space_vllm.fakes import FakeClient, Running, equal, make_weights, play, publisher

OLD, NEW = make_weights(1), make_weights(1, step=1)


async def serve_new(space: Running, folder: Path) -> Manifest:
    """Version 0 is an anchor, version 1 the delta that is returned."""
    with publisher(folder, "run") as out:
        await space.update(out.publish(OLD.items()))
        delta = out.publish(NEW.items())
    assert (await space.update(delta)).status_code == 200
    return delta


async def lose_the_weights(space: Running) -> None:
    """By a bit that flips in live memory; returns once the recount has found it."""
    bits(space.live["embed.weight"])[3] ^= 1
    async with asyncio.timeout(10):
        while not (await space.status())["counters"]["lost"]:
            await asyncio.sleep(0.02)


async def serves_new_again(space: Running) -> None:
    await space.healthy()
    status = await space.status()
    assert (status["run_id"], status["version"]) == ("run", 1)
    assert equal(space.live, NEW)


def start_run(folder: Path, run_id: str, by_reference: str = "") -> Manifest:
    """A run without a version, or with the fingerprint of its base, which is then version 0."""
    bucket = open_bucket(f"local:{folder}")
    bucket.write(layout.run_file(run_id), Run(run_id, now(), "m", Base("r", "c", by_reference)).to_json())
    manifest = Manifest(run_id, 0, "anchor", (), by_reference, 1, 1, 1, now())
    if by_reference:
        raw, path = manifest.to_json(), layout.manifest(run_id, 0)
        bucket.write(path, raw)
        pointer = Pointer(run_id, 0, path, xxhash.xxh3_128_hexdigest(raw))
        bucket.write(layout.pointer(run_id), pointer.to_json())
    return manifest


def test_after_a_loss_what_was_served_is_reached_although_the_pointer_is_behind(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        bucket = open_bucket(f"local:{tmp_path}")
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(OLD.items()))
            pointer = bucket.read(layout.pointer("run"))
            await space.update(out.publish(NEW.items()))
        bucket.write(layout.pointer("run"), pointer, replace=True)
        await lose_the_weights(space)
        await serves_new_again(space)

    play(tmp_path, scenario)


def test_after_a_loss_a_newer_run_without_a_version_changes_nothing(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        await serve_new(space, tmp_path)
        start_run(tmp_path, "second")
        await lose_the_weights(space)
        await serves_new_again(space)

    play(tmp_path, scenario)


def test_after_a_loss_a_run_that_cannot_be_read_does_not_hold_up_the_one_that_is_followed(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        await serve_new(space, tmp_path)
        open_bucket(f"local:{tmp_path}").write(layout.run_file("other"), b"{}")
        await lose_the_weights(space)
        await serves_new_again(space)

    play(tmp_path, scenario)


def test_when_only_an_older_version_can_be_built_the_door_stays_shut_until_a_newer_one_is_whole(
    tmp_path: Path,
) -> None:
    async def scenario(space: Running) -> None:
        delta = await serve_new(space, tmp_path)
        (tmp_path / delta.path).write_bytes(b"damaged")
        await lose_the_weights(space)
        await asyncio.sleep(0.5)
        assert (await space.http.get("/health")).status_code == 503
        assert (await space.http.get("/v1/models")).status_code == 503
        assert "step_000001" in (await space.status())["last_error"]
        with publisher(tmp_path, "run") as out:
            assert (await space.update(out.publish(OLD.items()))).status_code == 200
        assert equal(space.live, OLD)
        assert (await space.status())["version"] == 2

    play(tmp_path, scenario)


def test_a_newer_run_that_starts_from_the_base_model_is_followed_without_a_download(tmp_path: Path) -> None:
    base = make_weights(0)

    async def scenario(space: Running) -> None:
        await serve_new(space, tmp_path)
        manifest = start_run(tmp_path, "second", fingerprint.to_text(fingerprint.fingerprint(base)))
        answer = await space.update(manifest)
        assert (answer.status_code, answer.json()["kind"]) == (200, "anchor")
        assert equal(space.live, base)
        status = await space.status()
        assert (status["run_id"], status["version"], status["last_sync"]["nbytes"]) == ("second", 0, 0)

    play(tmp_path, scenario)


def test_with_the_door_shut_a_version_that_nothing_leads_to_still_asks_for_an_anchor(tmp_path: Path) -> None:
    with publisher(tmp_path, "run") as out:
        out.publish(OLD.items())
    with publisher(tmp_path, "run") as out:
        anchor = out.publish(NEW.items())
        (tmp_path / anchor.path).write_bytes(b"damaged")
        delta = out.publish(make_weights(1, step=2).items())
    assert (anchor.kind, delta.kind) == ("anchor", "delta")

    async def scenario(space: Running) -> None:
        answer = await space.update(delta)
        assert (answer.status_code, answer.json()["need"]) == (409, "anchor")
        assert (await space.http.get("/health")).status_code == 503
        with publisher(tmp_path, "run") as out:
            assert (await space.update(out.publish(NEW.items()))).status_code == 200
        await space.healthy()

    play(tmp_path, scenario, healthy=False)


def test_what_is_live_and_what_the_status_says_stay_the_same_when_resuming_fails(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(OLD.items()))
            delta = out.publish(NEW.items())
        space.client.broken["resume"] = RuntimeError("the engine broke")
        open_bucket(f"local:{tmp_path}").write(layout.run_file("other"), b"{}")
        assert (await space.update(delta)).status_code == 503
        await serves_new_again(space)

    play(tmp_path, scenario)


def test_an_extra_anchor_is_taken_when_it_is_cheaper_and_when_a_delta_is_damaged(tmp_path: Path) -> None:
    weights = large_model()

    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "r") as out:
            await space.update(out.publish(weights.items()))
            nudge(weights, 1)
            delta = out.publish(weights.items())
            add_anchor(open_bucket(f"local:{tmp_path}"), 1, weights)
            assert (await space.update(delta)).json()["kind"] == "delta"
            nudge(weights, 2)
            delta = out.publish(weights.items())
            add_anchor(open_bucket(f"local:{tmp_path}"), 2, weights)
        (tmp_path / delta.path).write_bytes(b"damaged")
        answer = await space.update(delta)
        assert (answer.status_code, answer.json()["kind"]) == (200, "anchor")
        assert same(space.live, weights)

    play(tmp_path, scenario, client=FakeClient(large_model(seed=7)))
