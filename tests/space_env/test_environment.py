"""One session: what is refused, that nothing but a reset starts a game, and when the secret may be seen."""

import asyncio
from typing import Any

import pytest

from shared.wordle import PROMPT, feedback, load_words, secret_for
from space_env.environment import RefusedError, WordleEnvironment
from space_env.models import WordleAction, WordleObservation, WordleState

SECRET = secret_for(7, load_words("tiny"))
OTHERS = [word for word in load_words("tiny").answers if word != SECRET][:6]


def started() -> WordleEnvironment:
    environment = WordleEnvironment()
    environment.reset(seed=7, words="tiny")
    return environment


def step(environment: WordleEnvironment, word: str) -> WordleObservation:
    return environment.step(WordleAction(word=word))


def test_a_reset_gives_the_task_and_six_tries() -> None:
    observation = WordleEnvironment().reset(seed=7, words="tiny")
    assert (observation.text, observation.tries_left, observation.turn) == (PROMPT, 6, 0)
    assert (observation.done, observation.reward, observation.secret) == (False, None, None)


def test_only_the_last_try_is_paid_and_the_score_is_there_before() -> None:
    environment = started()
    first, last = step(environment, OTHERS[0]), step(environment, SECRET)
    assert (first.done, first.reward) == (False, None)
    assert first.score == pytest.approx(sum(first.parts.values()))
    assert (last.done, last.won, last.reward, last.score) == (True, True, 0.95, 0.95)
    assert last.parts == {"solved": 1, "greens": 0, "yellows": 0, "invalid": 0, "turns": -0.05}


def test_an_invalid_guess_says_why_beside_the_text() -> None:
    observation = step(started(), "zzzzz")
    assert (observation.valid, observation.text) == (False, "invalid word 5 left")
    assert observation.reason == "not in the word list"


def test_the_marks_are_there_for_programs_too() -> None:
    environment = WordleEnvironment()
    environment.reset(seed=7, words="full")
    assert step(environment, "crane").marks == feedback("crane", secret_for(7, load_words("full")))
    assert step(environment, "zzzzz").marks == ""


def test_a_step_before_a_reset_is_an_error_and_starts_no_game() -> None:
    environment = WordleEnvironment()
    for _ in range(2):
        with pytest.raises(RefusedError, match="no game on this connection: reset first"):
            step(environment, "above")
    assert environment.state == WordleState()


def test_a_step_after_the_end_is_an_error_and_changes_nothing() -> None:
    environment = started()
    step(environment, SECRET)
    before = environment.state
    with pytest.raises(RefusedError, match="the game is over; reset to play another"):
        step(environment, OTHERS[0])
    assert environment.state == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"words": "huge"}, "no word list named 'huge'; choose one of tiny, small, medium, full"),
        ({"words": ["tiny"]}, r"no word list named \['tiny'\]; choose"),
        ({"seed": "7"}, "seed must be an integer, not '7'"),
        ({"seed": 7.5}, "seed must be an integer, not 7.5"),
        ({"seed": 7.0}, "seed must be an integer, not 7.0"),
        ({"seed": True}, "seed must be an integer, not True"),
        ({"episode_id": 5}, "episode_id must be a text of at most 255 characters, not 5"),
        ({"episode_id": "x" * 256}, "episode_id must be a text of at most 255 characters, not 'xxx"),
        ({"shaping": 3}, "shaping must name weights of the reward, as {'green': 0.1}, not 3"),
        ({"shaping": {"grey": 1}}, "no weight named 'grey'; choose from solved, green"),
    ],
)
def test_a_reset_that_is_refused_leaves_the_game_as_it_was(arguments: dict[str, Any], message: str) -> None:
    environment = started()
    step(environment, OTHERS[0])
    before = environment.state
    with pytest.raises(RefusedError, match=message):
        environment.reset(**{"seed": 8, "episode_id": "other", **arguments})
    assert environment.state == before
    assert step(environment, SECRET).won


def test_a_reset_that_is_refused_starts_no_game() -> None:
    environment = WordleEnvironment()
    with pytest.raises(RefusedError, match="no word list"):
        environment.reset(words="huge")
    with pytest.raises(RefusedError, match="no game on this connection"):
        step(environment, SECRET)


@pytest.mark.parametrize("name", ["self", "cls", "action", "kwargs", "timeout_s", "report"])
def test_an_argument_that_is_not_known_is_ignored_whatever_its_name(name: str) -> None:
    more: dict[str, Any] = {name: 1}
    assert WordleEnvironment().reset(seed=7, **more).turn == 0
    assert asyncio.run(WordleEnvironment().reset_async(seed=7, **more)).turn == 0


def test_the_weights_of_the_reward_are_a_games_own() -> None:
    environment = WordleEnvironment()
    environment.reset(seed=7, words="tiny", shaping={"solved": 3.0})
    assert step(environment, SECRET).reward == 3.0
    environment.reset(seed=7, words="tiny")
    assert step(environment, SECRET).reward == 1.0


def test_every_observation_of_a_game_is_reported() -> None:
    async def play() -> list[tuple[int, bool]]:
        seen: list[WordleObservation] = []
        environment = WordleEnvironment(seen.append)
        await environment.reset_async(seed=7, words="tiny")
        for word in (OTHERS[0], SECRET):
            await environment.step_async(WordleAction(word=word))
        return [(observation.turn, observation.done) for observation in seen]

    assert asyncio.run(play()) == [(0, False), (1, False), (2, True)]


def test_a_reset_in_the_middle_starts_over() -> None:
    environment = started()
    step(environment, OTHERS[0])
    assert environment.reset(seed=7, words="tiny").turn == 0
    assert step(environment, OTHERS[0]).valid


def test_other_sessions_do_not_change_a_seeds_secret() -> None:
    first, second = WordleEnvironment(), WordleEnvironment()
    first.reset(seed=7, words="tiny")
    second.reset(seed=8, words="tiny")
    second.reset(words="tiny")
    assert step(first, SECRET).won


def test_without_a_seed_the_secret_is_drawn_anew() -> None:
    secrets = set()
    for _ in range(20):
        environment = WordleEnvironment()
        environment.reset()
        for _ in range(6):
            step(environment, "zzzzz")
        secrets.add(environment.state.secret)
    assert len(secrets) > 10


def test_the_state_shows_secret_and_seed_only_after_the_end() -> None:
    environment = started()
    for word in OTHERS[:5]:
        assert step(environment, word).secret is None
        assert (environment.state.secret, environment.state.seed, environment.state.over) == (None, None, False)
    assert step(environment, OTHERS[5]).secret == SECRET
    state = environment.state
    assert (state.secret, state.seed, state.over, state.won) == (SECRET, 7, True, False)
    assert (state.step_count, len(state.board), state.words) == (6, 6, "tiny")


def test_a_session_without_a_game_has_an_empty_state() -> None:
    assert WordleEnvironment().state.model_dump(exclude_defaults=True) == {}


def test_the_given_episode_id_is_kept_and_a_missing_one_made_up() -> None:
    environment = WordleEnvironment()
    environment.reset(seed=1, episode_id="mine")
    assert environment.state.episode_id == "mine"
    environment.reset(seed=1)
    assert environment.state.episode_id not in (None, "mine")


def test_the_async_calls_are_the_same_game() -> None:
    async def play() -> WordleObservation:
        environment = WordleEnvironment()
        await environment.reset_async(seed=7, words="tiny")
        return await environment.step_async(WordleAction(word=SECRET))

    assert asyncio.run(play()).won
