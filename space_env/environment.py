"""The OpenEnv environment: one session, one game at a time. Knows no sockets and no other session."""

import secrets
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from shared.wordle import PROMPT, WORD_LISTS, load_words, secret_for
from space_env.models import WordleAction, WordleObservation, WordleState
from space_env.reward import Shaping
from space_env.wordle import Game, GameOverError, Try

NO_GAME = "no game on this connection: reset first, then replay the guesses of a game that was cut off"

Report = Callable[[WordleObservation], None]
"""Told of every observation of a session's game, the opening one (turn 0) included."""


class RefusedError(ValueError):
    """A request that cannot be: no game was started or changed by it."""


class WordleEnvironment(Environment[WordleAction, WordleObservation, WordleState]):
    """Only `reset` starts a game. What cannot be done raises RefusedError, and OpenEnv answers with an error."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self, report: Report | None = None) -> None:
        super().__init__()
        self._report = report
        self._game: Game | None = None
        self._seed: int | None = None
        self._episode: str | None = None

    def reset(
        self,
        /,
        seed: int | None = None,
        episode_id: str | None = None,
        words: str = "full",
        shaping: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> WordleObservation:
        """The same seed and word list give the same secret; without a seed the secret is drawn at random.
        `shaping` names weights of the reward that differ. A reset that is refused, here or by OpenEnv before it comes
        here, leaves the session as it was: a game under way goes on, and without one there is still none."""
        word_list = load_words(_checked_name(words))
        weights = _checked_shaping({} if shaping is None else shaping)
        drawn = secrets.randbelow(2**31) if seed is None else _checked_seed(seed)
        self._episode = _checked_episode(episode_id) or str(uuid.uuid4())
        self._seed = drawn
        self._game = Game(secret_for(drawn, word_list), word_list, weights)
        return _observe(self._game, PROMPT)

    def step(self, action: WordleAction, timeout_s: float | None = None, **kwargs: Any) -> WordleObservation:
        if self._game is None:
            raise RefusedError(NO_GAME)
        try:
            played = self._game.guess(action.word)
        except GameOverError as error:
            raise RefusedError(str(error)) from error
        return _observe(self._game, played.text, played)

    async def reset_async(
        self,
        /,
        seed: int | None = None,
        episode_id: str | None = None,
        words: str = "full",
        shaping: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> WordleObservation:
        return self._reported(self.reset(seed, episode_id, words, shaping))

    async def step_async(
        self, action: WordleAction, timeout_s: float | None = None, **kwargs: Any
    ) -> WordleObservation:
        return self._reported(self.step(action))

    @property
    def state(self) -> WordleState:
        game = self._game
        if game is None:
            return WordleState()
        return WordleState(
            episode_id=self._episode,
            step_count=len(game.tries),
            words=game.words.name,
            board=[t.text for t in game.tries],
            over=game.over,
            won=game.won,
            secret=game.secret if game.over else None,
            seed=self._seed if game.over else None,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name="wordle", description="Guess a 5-letter word in 6 tries, with feedback per letter.", version="1.0.0"
        )

    def _reported(self, observation: WordleObservation) -> WordleObservation:
        if self._report is not None:
            self._report(observation)
        return observation


def _checked_name(words: Any) -> str:
    if not isinstance(words, str) or words not in WORD_LISTS:
        raise RefusedError(f"no word list named {words!r:.40}; choose one of {', '.join(WORD_LISTS)}")
    return words


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise RefusedError(f"seed must be an integer, not {seed!r:.40}")
    return seed


def _checked_episode(episode_id: Any) -> str:
    if episode_id is None:
        return ""
    if not isinstance(episode_id, str) or len(episode_id) > 255:
        raise RefusedError(f"episode_id must be a text of at most 255 characters, not {episode_id!r:.40}")
    return episode_id


def _checked_shaping(given: Any) -> Shaping:
    if not isinstance(given, Mapping):
        raise RefusedError(f"shaping must name weights of the reward, as {{'green': 0.1}}, not {given!r:.40}")
    try:
        return Shaping.of(given)
    except ValueError as error:
        raise RefusedError(str(error)) from error


def _observe(game: Game, text: str, played: Try | None = None) -> WordleObservation:
    reward = game.reward()
    marks, reason = (played.marks, played.reason) if played else ("", "")
    return WordleObservation(
        text=text,
        marks=marks,
        valid=not reason,
        reason=reason,
        won=game.won,
        turn=len(game.tries),
        tries_left=game.tries_left,
        done=game.over,
        reward=reward.total if game.over else None,
        score=reward.total,
        parts=reward.parts,
        secret=game.secret if game.over else None,
    )
