"""The typed client against the real server."""

import asyncio

import pytest

from shared.wordle import load_words, secret_for
from space_env.client import WordleClient
from space_env.models import WordleAction, WordleObservation, WordleState
from tests.space_env.server import running

SECRET = secret_for(7, load_words("tiny"))


def test_the_typed_client_plays_a_game_and_reads_the_state() -> None:
    async def play(url: str) -> tuple[WordleObservation, WordleState]:
        async with WordleClient(url) as client:
            await client.reset(seed=7, words="tiny")
            result = await client.step(WordleAction(word=SECRET))
            assert (result.reward, result.done) == (1.0, True)
            return result.observation, await client.state()

    with running() as url:
        observation, state = asyncio.run(play(url))
    assert (observation.won, observation.reward, observation.done) == (True, 1.0, True)
    assert (observation.marks, observation.secret) == ("+++++", SECRET)
    assert (state.secret, state.board) == (SECRET, [observation.text])


def test_after_a_lost_connection_a_step_is_an_error_and_no_new_game() -> None:
    async def play(url: str) -> None:
        async with WordleClient(url) as client:
            await client.reset(seed=7, words="tiny")
            await client.disconnect()
            with pytest.raises(RuntimeError, match="no game on this connection: reset first"):
                await client.step(WordleAction(word=SECRET))
            assert (await client.state()).step_count == 0

    with running() as url:
        asyncio.run(play(url))
