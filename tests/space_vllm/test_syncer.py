"""Calls of vLLM that fail at any moment: the task goes on, nothing stays paused, nobody is let in too early."""

import asyncio
from pathlib import Path

import pytest

from shared.bits import bits
from tests.space_vllm.fakes import Running, equal, make_weights, play, publisher

OLD, NEW = make_weights(1), make_weights(1, step=1)


def test_a_recount_that_vllm_fails_is_told_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(OLD.items()))
            space.client.broken["delta_recount"] = RuntimeError("one hiccup")
            async with asyncio.timeout(10):
                while "one hiccup" not in str((await space.status())["last_error"]):
                    await asyncio.sleep(0.02)
            before = (await space.status())["counters"]["recounts"]
            assert (await space.update(out.publish(NEW.items()))).status_code == 200
            async with asyncio.timeout(10):
                while (await space.status())["counters"]["recounts"] <= before:
                    await asyncio.sleep(0.02)

    play(tmp_path, scenario)


@pytest.mark.parametrize("call", ["abort", "resume", "delta_lose", "delta_stage", "pause", "delta_verify"])
def test_a_call_that_fails_while_lost_weights_are_built_anew_only_costs_time(tmp_path: Path, call: str) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(OLD.items()))
            await space.update(out.publish(NEW.items()))
        space.client.broken[call] = RuntimeError("the engine broke")
        bits(space.live["embed.weight"])[3] ^= 1
        async with asyncio.timeout(10):
            while not (await space.status())["counters"]["lost"]:
                await asyncio.sleep(0.02)
        await space.healthy()
        assert equal(space.live, NEW)
        assert call not in space.client.broken
        assert not space.client.paused

    play(tmp_path, scenario)


def test_while_generation_cannot_be_resumed_the_door_is_shut(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(OLD.items()))
            delta = out.publish(NEW.items())
        gate = space.client.held["resume"] = asyncio.Event()
        space.client.broken["resume"] = RuntimeError("the engine broke")
        waiting = asyncio.create_task(space.update(delta))
        async with asyncio.timeout(10):
            while "resume" in space.client.broken:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        assert space.client.paused
        assert (await space.http.get("/v1/models")).status_code == 503
        gate.set()
        await waiting
        await space.healthy()
        assert equal(space.live, NEW)

    play(tmp_path, scenario)


def test_an_error_of_the_task_itself_shuts_the_door_and_the_task_goes_on(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(OLD.items()))
        reconciler = space.space.reconciler

        async def broken() -> None:
            vars(reconciler).pop("_idle")
            raise ZeroDivisionError

        vars(reconciler)["_idle"] = broken
        with publisher(tmp_path, "run") as out:
            await space.update(out.publish(NEW.items()))
        await space.healthy()
        assert equal(space.live, NEW)

    play(tmp_path, scenario)


def test_checksums_that_vllm_does_not_give_are_503_with_a_sentence(tmp_path: Path) -> None:
    async def scenario(space: Running) -> None:
        space.client.broken["checksums"] = RuntimeError("the engine broke")
        answer = await space.http.get("/weights/checksums")
        assert (answer.status_code, "the engine broke" in answer.json()["error"]) == (503, True)
        assert (await space.http.get("/weights/checksums")).status_code == 200

    play(tmp_path, scenario)
