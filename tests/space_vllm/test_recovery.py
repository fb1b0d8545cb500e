"""Placed wrongly, lost, changed behind everybody's back: a fake engine goes wrong, and the Space ends verified."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.bits import bits
from shared.types import Manifest
from space_vllm.outcomes import Answer, Verified
from tests.space_vllm.fakes import FakeClient, Running, equal, make_weights, play, publisher

OLD, NEW = make_weights(1), make_weights(1, step=1)


async def anchor_and_delta(space: Running, folder: Path) -> Manifest:
    """The anchor is served; the delta is for the caller to announce."""
    with publisher(folder, "run") as out:
        assert (await space.update(out.publish(OLD.items()))).status_code == 200
        return out.publish(NEW.items())


async def counters(space: Running) -> dict[str, int]:
    found: dict[str, int] = (await space.status())["counters"]
    return found


async def is_serving(space: Running, weights: dict[str, torch.Tensor]) -> None:
    """Returns once these weights are served; fails after ten seconds."""
    async with asyncio.timeout(10):
        while not (equal(space.live, weights) and (await space.http.get("/health")).status_code == 200):
            await asyncio.sleep(0.02)
    assert not space.client.paused


def test_a_version_whose_placing_breaks_off_is_undone_and_the_old_one_goes_on(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        delta = await anchor_and_delta(space, tmp_path)
        space.client.model.failures = 1
        answer = await space.update(delta)
        assert (answer.status_code, answer.json()["served_version"], answer.json()["need"]) == (409, 0, "anchor")
        assert "version 0 was put back" in answer.json()["error"]
        assert equal(space.live, OLD)
        assert (await counters(space))["undone"] == 1
        assert (await space.http.get("/health")).status_code == 200
        assert (await space.update(delta)).status_code == 200
        assert equal(space.live, NEW)

    play(tmp_path, scenario)


def test_without_any_known_version_all_in_flight_is_aborted_and_the_weights_are_built_anew(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        released = asyncio.Event()

        async def slow() -> str:
            await released.wait()
            return "made with lost weights"

        space.app.add_api_route("/v1/slow", slow, methods=["GET"])
        delta = await anchor_and_delta(space, tmp_path)
        in_flight = asyncio.create_task(space.http.get("/v1/slow"))
        await asyncio.sleep(0.05)
        space.client.model.skewed = 1  # what that wrote elsewhere is not put back
        assert (await space.update(delta)).status_code == 503
        calls = space.client.calls
        assert calls[calls.index("delta_undo") :][:4] == ["delta_undo", "delta_verify", "abort", "resume"]
        released.set()
        assert (await in_flight).status_code == 503
        await is_serving(space, NEW)
        assert (await counters(space))["lost"] == 1
        assert (await space.http.get("/v1/slow")).text == '"made with lost weights"'

    play(tmp_path, scenario)


@pytest.mark.parametrize("clears", [1, 2])
def test_a_cache_that_is_not_cleared_keeps_the_new_version_out(tmp_path: Path, clears: int) -> None:
    async def scenario(space: Running) -> None:
        delta = await anchor_and_delta(space, tmp_path)
        space.client.cached, space.client.sticky = 7, clears + 1
        answer = await space.update(delta)
        assert answer.status_code == (200 if clears == 1 else 503)
        assert ("reset" in space.client.calls) and not space.client.paused
        if clears == 2:
            assert "prefix cache still holds 7 blocks" in answer.json()["error"]
            assert equal(space.live, OLD)
            assert (await space.http.get("/health")).status_code == 200
            assert (await space.update(delta)).status_code == 200
        assert equal(space.live, NEW)

    play(tmp_path, scenario)


def test_a_bit_that_flips_in_live_memory_is_found_and_the_version_is_built_anew(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        await space.update(await anchor_and_delta(space, tmp_path))
        bits(space.live["embed.weight"])[3] ^= 1
        async with asyncio.timeout(10):
            while not (await counters(space))["lost"]:
                await asyncio.sleep(0.02)
        await is_serving(space, NEW)
        status = await space.status()
        assert "'embed.weight'" in status["last_error"]
        assert (status["version"], status["tensors"]) == (1, {"in_place": 0, "reloaded": 3})

    play(tmp_path, scenario)


def test_a_write_elsewhere_that_verifying_cannot_see_is_found_by_the_recount(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        delta = await anchor_and_delta(space, tmp_path)
        space.client.model.strays = True
        assert (await space.update(delta)).status_code == 200
        await is_serving(space, NEW)
        assert (await counters(space))["lost"] == 1

    play(tmp_path, scenario)


def test_weights_are_counted_as_a_whole_before_the_door_opens(tmp_path: Path) -> None:
    with publisher(tmp_path, "run") as out:
        out.publish(OLD.items())
        out.publish(NEW.items())
    client = FakeClient(make_weights(0))
    client.model.strays = True

    async def scenario(space: Running) -> None:
        assert equal(space.live, NEW)
        assert (await counters(space))["lost"] == 1

    play(tmp_path, scenario, client=client)


class LyingClient(FakeClient):
    """Whoever asks for verification is told what they hope for."""

    hope = ""

    def _worker(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == "stage":
            self.hope = Manifest.from_json(args[0].encode(), "update").fingerprint
        answer = super()._worker(method, args)
        if method != "verify":
            return answer
        receiver = self.receiver
        if receiver._placed is not None:  # the lie: what was placed counts as verified
            receiver._settle(receiver._placed.version, receiver._placed)
        told: Answer = Verified(self.hope)
        return told.to_wire()


def test_a_verification_that_lies_is_found_out_by_the_recount(tmp_path: Path) -> None:
    client = LyingClient(make_weights(0))

    async def scenario(space: Running) -> None:
        delta = await anchor_and_delta(space, tmp_path)
        client.model.skewed = 1
        assert (await space.update(delta)).status_code == 200
        await is_serving(space, NEW)
        assert (await counters(space))["lost"] == 1

    play(tmp_path, scenario, client=client)


def test_when_the_run_has_no_anchor_left_the_base_model_is_built_anew_and_deltas_follow(tmp_path: Path) -> None:
    base = make_weights(0)

    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            first = out.publish(base.items())
            await space.update(first)
            await space.update(out.publish(make_weights(0, step=1).items()))
        (tmp_path / first.path).unlink()
        bits(space.live["embed.weight"])[3] ^= 1
        async with asyncio.timeout(10):
            while not (await counters(space))["lost"]:
                await asyncio.sleep(0.02)
        await is_serving(space, make_weights(0, step=1))
        assert "delta_stage_base" in space.client.calls
        assert (await space.status())["run_id"] == "run"

    play(tmp_path, scenario)


def test_while_missed_versions_are_caught_up_health_is_503_and_answers_go_on(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        async def quick() -> str:
            return "made with version 0"

        space.app.add_api_route("/v1/quick", quick, methods=["GET"])
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(OLD.items()))
            out.publish(NEW.items())
            newest = out.publish(make_weights(1, step=2).items())
        gate = space.client.held["delta_stage"] = asyncio.Event()
        assert (await space.update(newest, wait=0.1)).status_code == 202
        async with asyncio.timeout(10):
            while (await space.status())["state"] != "catching_up":
                await asyncio.sleep(0.02)
        assert (await space.http.get("/health")).status_code == 503
        assert (await space.http.get("/v1/quick")).status_code == 200
        gate.set()
        assert (await space.update(newest)).status_code == 200
        assert equal(space.live, make_weights(1, step=2))

    play(tmp_path, scenario)
