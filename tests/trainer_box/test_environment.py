"""The rollouts' environment class against the real server: what TRL sees of it, and what lost connections do."""

import asyncio
import functools
import inspect
import pickle
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import stamina
from transformers.utils import get_json_schema

from shared.errors import SyncError
from shared.wordle import PROMPT, load_words, secret_for
from tests.space_env.server import running
from tests.trainer_box.fake_space import FakeSpace
from tests.trainer_box.redirecting import redirecting
from trainer_box.environment import GAME_OVER, ChangedError, TinyWordle, Wordle, dataset
from trainer_box.reward import Reward

TINY = load_words("tiny")
SECRET = secret_for(7, TINY)
OTHERS = [word for word in TINY.answers if word != SECRET]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as address:
        yield address


@pytest.fixture
def few_attempts() -> Iterator[None]:
    """Ten attempts without a wait between them, in place of a minute of them."""
    with stamina.set_testing(True, attempts=10):
        yield


@asynccontextmanager
async def game(url: str, seed: int = 7, words: str = "tiny", **options: Any) -> AsyncIterator[Wordle]:
    wordle = Wordle(url, words, **options)
    wordle.reset(seed=seed)
    yield wordle
    await close(wordle)


async def close(wordle: Wordle) -> None:
    if wordle._client is not None:
        await wordle._client.close()


def test_a_redirect_is_not_followed(space: FakeSpace, few_attempts: None) -> None:
    async def lose() -> Reward | None:
        with redirecting(space.url) as url:
            async with game(url) as wordle:
                with pytest.raises(ConnectionError):
                    await wordle.guess("above")
                return await wordle.get_reward()

    assert asyncio.run(lose()) is None
    assert space.headers == []


def test_trl_sees_one_tool_and_its_schema() -> None:
    public = [name for name, _ in inspect.getmembers(Wordle, inspect.isfunction) if not name.startswith("_")]
    assert public == ["get_reward", "guess", "reset"]
    assert inspect.iscoroutinefunction(Wordle.guess) and not inspect.iscoroutinefunction(Wordle.reset)
    function = get_json_schema(Wordle("http://unused").guess)["function"]
    assert (function["name"], function["description"]) == ("guess", "Guess a word.")
    assert function["parameters"] == {
        "type": "object",
        "properties": {"word": {"type": "string", "description": "A 5-letter English word."}},
        "required": ["word"],
    }


def test_a_factory_can_be_sent_to_another_process_and_needs_no_server() -> None:
    factory = pickle.loads(pickle.dumps(functools.partial(Wordle, "http://127.0.0.1:1")))
    assert factory().reset(prompt=[{"role": "user", "content": ""}], seed=3) == PROMPT


def test_a_game_is_played_and_paid(url: str) -> None:
    async def play() -> None:
        async with game(url) as wordle:
            assert (await wordle.guess(OTHERS[0])).endswith(" 5 left")
            assert await wordle.guess("zzzzz") == "invalid word 4 left (not in the word list)"
            assert (await wordle.guess(SECRET.upper())).endswith(" won")
            assert await wordle.get_reward() == pytest.approx(0.8)

    asyncio.run(play())


def test_guesses_made_at_once_are_played_one_after_the_other(url: str) -> None:
    async def play() -> None:
        async with game(url) as wordle:
            answers = await asyncio.gather(*(wordle.guess(word) for word in OTHERS[:3]))
            assert [answer[-6:] for answer in answers] == ["5 left", "4 left", "3 left"]
            assert [answer[0] for answer in answers] == [word[0].upper() for word in OTHERS[:3]]
            wordle.reset(seed=7)
            reward, answer = await asyncio.gather(wordle.get_reward(), wordle.guess(SECRET))
            assert reward == pytest.approx(-0.6)
            assert answer.endswith(" won")
            assert await wordle.get_reward() == 1.0

    asyncio.run(play())


def test_a_guess_whose_answer_nobody_waited_for_counts(url: str) -> None:
    async def play() -> None:
        async with game(url) as wordle:
            await wordle.guess(OTHERS[0])
            given_up = asyncio.create_task(wordle.guess(SECRET))
            await asyncio.sleep(0)  # so that it has begun
            given_up.cancel()
            await asyncio.wait([given_up])
            assert given_up.cancelled()
            assert await wordle.get_reward() == pytest.approx(0.95)

    asyncio.run(play())


def test_white_space_around_a_guess_is_no_part_of_it(url: str) -> None:
    async def play() -> None:
        async with game(url) as wordle:
            assert (await wordle.guess(f"\u3000{' ' * 40}{SECRET}\n")).endswith(" won")

    asyncio.run(play())


def test_the_demos_environment_has_its_models_words_and_short_answers(url: str) -> None:
    async def play() -> None:
        wordle = TinyWordle(url)
        wordle.reset(seed=7)
        assert await wordle.guess("zzzzz") == "invalid word 5 left"
        assert (await wordle.guess(SECRET)).endswith(" won")
        await close(wordle)

    asyncio.run(play())


def test_the_reward_is_the_sum_of_its_parts_and_may_be_shaped(url: str) -> None:
    async def play() -> tuple[Reward | None, Reward | None]:
        async with game(url) as plain, game(url, shaping={"solved": 2.0, "turn": 0.0}) as shaped:
            for wordle in (plain, shaped):
                await wordle.guess(OTHERS[0])
                await wordle.guess(SECRET)
            return await plain.get_reward(), await shaped.get_reward()

    plain, shaped = asyncio.run(play())
    assert plain is not None and shaped is not None
    assert [float(plain), float(shaped)] == pytest.approx([0.95, 2.0])
    names = ["solved", "greens", "yellows", "invalid", "turns"]
    assert list(plain.parts) == ["solved", *(f"reward_{name}" for name in names)]
    assert plain == pytest.approx(sum(plain.parts[f"reward_{name}"] for name in names))


def test_a_row_without_a_seed_stops_training() -> None:
    with pytest.raises(SyncError, match="a row has no `seed`"):
        Wordle("http://unused").reset(prompt=[])


def test_guesses_after_the_end_change_nothing(url: str) -> None:
    async def play() -> None:
        async with game(url) as wordle:
            await wordle.guess(SECRET)
            assert [await wordle.guess(word) for word in (OTHERS[0], SECRET)] == [GAME_OVER, GAME_OVER]
            assert await wordle.get_reward() == 1.0

    asyncio.run(play())


def test_games_that_are_left_early_pay_as_they_stand(url: str) -> None:
    async def play() -> None:
        async with game(url) as wordle:
            assert await wordle.get_reward() == pytest.approx(-0.6)
            wordle.reset(seed=7)
            await wordle.guess("zzzzz")
            assert await wordle.get_reward() == pytest.approx(-0.6)

    asyncio.run(play())


def test_an_instance_is_used_for_game_after_game_over_one_connection(url: str) -> None:
    async def play() -> None:
        async with game(url) as wordle:
            await wordle.guess(OTHERS[0])
            assert wordle._client is not None
            connection = wordle._client._ws
            wordle.reset(seed=8)
            assert (await wordle.guess(secret_for(8, TINY))).endswith(" won")
            assert wordle._client._ws is connection

    asyncio.run(play())


def test_a_row_may_choose_the_word_list(url: str) -> None:
    async def play() -> None:
        full = secret_for(7, load_words("full"))
        async with game(url) as wordle:
            wordle.reset(seed=7, words="full")
            assert (await wordle.guess(full)).endswith(" won")
            wordle.reset(seed=7)
            assert (await wordle.guess(SECRET)).endswith(" won")

    asyncio.run(play())


@pytest.mark.parametrize("word", ["\ud800bove", "x" * 100_000, 5, None, ["above"]])
def test_whatever_a_model_sends_is_a_guess_and_uses_up_a_try(url: str, word: str) -> None:
    async def play() -> None:
        async with game(url) as wordle:
            assert (await wordle.guess(word)).startswith("invalid word 5 left (")

    asyncio.run(play())


def test_a_dropped_connection_is_replaced_and_the_game_played_again(url: str, few_attempts: None) -> None:
    async def play() -> None:
        async with game(url) as wordle:
            await wordle.guess(OTHERS[0])
            await wordle.guess("zzzzz")
            assert wordle._client is not None and wordle._client._ws is not None
            await wordle._client._ws.close()
            assert (await wordle.guess(OTHERS[1])).endswith(" 3 left")
            assert (await wordle.guess(SECRET)).endswith(" won")
            assert await wordle.get_reward() == pytest.approx(0.75)

    asyncio.run(play())


def cut_off(runner: asyncio.Runner, port: int) -> Wordle:
    """In a game whose server has answered one guess, and has ended."""
    with running(port=port) as url:
        wordle = Wordle(url, "tiny")
        wordle.reset(seed=7)
        assert runner.run(wordle.guess(OTHERS[0])).endswith(" 5 left")
    return wordle


def test_a_restarted_server_gets_the_game_back(free_port: Callable[[], int], few_attempts: None) -> None:
    async def go_on(wordle: Wordle) -> None:
        assert (await wordle.guess(OTHERS[1])).endswith(" 4 left")
        await close(wordle)

    port = free_port()
    with asyncio.Runner() as runner:
        wordle = cut_off(runner, port)
        with running(port=port):
            runner.run(go_on(wordle))


def test_a_game_that_the_restarted_server_answers_otherwise_has_no_reward(
    free_port: Callable[[], int], few_attempts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go_on(wordle: Wordle) -> None:
        with pytest.raises(ChangedError, match="guess 1 of seed 7 was '.* 5 left' and is '.* won' now"):
            await wordle.guess(OTHERS[1])
        with pytest.raises(ConnectionError, match="this game is lost"):
            await wordle.guess(OTHERS[1])
        assert await wordle.get_reward() is None
        await close(wordle)

    port = free_port()
    with asyncio.Runner() as runner:
        wordle = cut_off(runner, port)
        monkeypatch.setattr("space_env.environment.secret_for", lambda seed, words: OTHERS[0])  # another release
        with running(port=port):
            runner.run(go_on(wordle))


def test_a_server_that_is_killed_before_it_answers_is_played_with_again(
    free_port: Callable[[], int], few_attempts: None
) -> None:
    """The guess was sent, and whether it was played is unknown: the game is replayed with it, once."""

    async def guess_while_it_goes(wordle: Wordle) -> str:
        assert wordle._client is not None and wordle._client._ws is not None
        wordle._client._ws.transport.abort()
        return await wordle.guess(OTHERS[1])

    port = free_port()
    with asyncio.Runner() as runner, running(port=port) as url:
        wordle = Wordle(url, "tiny")
        wordle.reset(seed=7)
        runner.run(wordle.guess(OTHERS[0]))
        assert runner.run(guess_while_it_goes(wordle)).endswith(" 4 left")
        runner.run(close(wordle))


def test_a_full_server_is_tried_again_until_a_place_is_free() -> None:
    async def play(url: str) -> None:
        async with game(url) as first:
            await first.guess(OTHERS[0])
            async with game(url) as second:
                waiting = asyncio.create_task(second.guess(SECRET))
                await asyncio.sleep(0.2)
                assert not waiting.done() and first._client is not None
                await first._client.close()
                assert (await waiting).endswith(" won")

    with running(capacity=1) as url:
        asyncio.run(play(url))


def test_a_game_whose_server_stays_away_is_lost_and_has_no_reward(few_attempts: None) -> None:
    async def play(url: str) -> None:
        wordle = Wordle(url, "tiny")
        wordle.reset(seed=7)
        with pytest.raises(ConnectionError, match="Failed to connect"):
            await wordle.guess("above")
        with pytest.raises(ConnectionError, match="this game is lost"):
            await wordle.guess("above")
        assert await wordle.get_reward() is None

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        asyncio.run(play(f"http://127.0.0.1:{unused.getsockname()[1]}"))


def test_a_game_without_a_guess_whose_server_is_away_has_no_reward(few_attempts: None) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert asyncio.run(Wordle(f"http://127.0.0.1:{unused.getsockname()[1]}").get_reward()) is None


def test_the_next_game_after_a_lost_one_is_played(free_port: Callable[[], int], few_attempts: None) -> None:
    port = free_port()
    wordle = Wordle(f"http://127.0.0.1:{port}", "tiny")
    wordle.reset(seed=7)

    async def lose() -> None:
        with pytest.raises(ConnectionError):
            await wordle.guess("above")

    async def win() -> None:
        wordle.reset(seed=7)
        assert (await wordle.guess(SECRET)).endswith(" won")
        await close(wordle)

    asyncio.run(lose())
    with running(port=port):
        asyncio.run(win())


def test_the_key_is_sent_and_a_wrong_one_stops_training(monkeypatch: pytest.MonkeyPatch) -> None:
    async def right(url: str) -> None:
        async with game(url) as wordle:
            assert (await wordle.guess(SECRET)).endswith(" won")

    async def wrong(url: str) -> None:
        async with game(url) as wordle:
            with pytest.raises(ConnectionError, match="401"):
                await wordle.guess(SECRET)
            with pytest.raises(SyncError, match="refuses to play: .*ENV_API_KEY must hold its key") as refused:
                await wordle.get_reward()
            assert "mistaken" not in str(refused.value)

    with running(api_key="sesame") as url:
        monkeypatch.setenv("ENV_API_KEY", "sesame")
        asyncio.run(right(url))
        monkeypatch.setenv("ENV_API_KEY", "mistaken")
        asyncio.run(wrong(url))


def test_an_unknown_word_list_stops_training(url: str) -> None:
    async def play() -> None:
        async with game(url, words="huge") as wordle:
            with pytest.raises(SyncError, match="refuses to play: Server error: no word list named 'huge'"):
                with pytest.raises(RuntimeError, match="no word list named 'huge'"):
                    await wordle.guess(SECRET)
                await wordle.get_reward()

    asyncio.run(play())


def test_32_games_at_once_on_one_loop_stay_apart(url: str) -> None:
    async def play(seed: int) -> float | None:
        async with game(url, seed) as wordle:
            secret = secret_for(seed, TINY)
            await wordle.guess(next(word for word in OTHERS if word != secret))
            await wordle.guess(secret)
            return await wordle.get_reward()

    async def play_all() -> list[float | None]:
        return await asyncio.gather(*(play(seed) for seed in range(32)))

    assert asyncio.run(play_all()) == [0.95] * 32


def test_dataset_rows_have_the_task_and_distinct_seeds_below_those_of_evaluation() -> None:
    rows = dataset(500)
    assert rows.column_names == ["prompt", "seed"]
    assert rows[0]["prompt"] == [{"role": "user", "content": ""}]
    assert len(set(rows["seed"])) == 500
    assert 0 <= min(rows["seed"]) and max(rows["seed"]) < 1_000_000


def test_a_datasets_seeds_follow_from_its_own_seed() -> None:
    assert list(dataset(20, 1)["seed"]) == list(dataset(20, 1)["seed"]) != list(dataset(20, 2)["seed"])
