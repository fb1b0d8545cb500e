"""The OpenEnv environment: one session, one game at a time. Knows no sockets and no other session."""

import secrets
import uuid
from dataclasses import asdict
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from shared.wordle import PROMPT, WORD_LISTS, load_words, secret_for
from space_env.models import WordleAction, WordleObservation, WordleState
from space_env.wordle import Game, GameOverError

NO_GAME = "no game on this connection: reset first, then replay the guesses of a game that was cut off"


class WordleEnvironment(Environment[WordleAction, WordleObservation, WordleState]):
    """A refused request comes back as an observation with `error` set and `done` true, and never starts a game."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self) -> None:
        super().__init__()
        self._game: Game | None = None
        self._seed: int | None = None
        self._episode: str | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, words: str = "full", **kwargs: Any
    ) -> WordleObservation:
        """The same seed and word list give the same secret; without a seed the secret is drawn at random."""
        self._game = None
        if seed is not None and not isinstance(seed, int):
            return _refused(f"seed must be an integer, not {seed!r:.40}")
        if words not in WORD_LISTS:
            return _refused(f"no word list named {words!r:.40}; choose one of {', '.join(WORD_LISTS)}")
        word_list = load_words(words)
        self._seed = secrets.randbelow(2**31) if seed is None else seed
        self._episode = str(episode_id or uuid.uuid4())
        self._game = Game(secret_for(self._seed, word_list), word_list)
        return _observe(self._game, PROMPT)

    def step(self, action: WordleAction, timeout_s: float | None = None, **kwargs: Any) -> WordleObservation:
        if self._game is None:
            return _refused(NO_GAME)
        try:
            played = self._game.guess(action.word)
        except GameOverError as error:
            return _refused(str(error))
        return _observe(self._game, played.text, played.reason)

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, words: str = "full", **kwargs: Any
    ) -> WordleObservation:
        return self.reset(seed, episode_id, words)

    async def step_async(
        self, action: WordleAction, timeout_s: float | None = None, **kwargs: Any
    ) -> WordleObservation:
        return self.step(action)

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


def _refused(error: str) -> WordleObservation:
    return WordleObservation(error=error, text=error, done=True, valid=False, tries_left=0)


def _observe(game: Game, text: str, reason: str = "") -> WordleObservation:
    reward = game.reward()
    return WordleObservation(
        text=text,
        valid=not reason,
        reason=reason,
        won=game.won,
        turn=len(game.tries),
        tries_left=game.tries_left,
        done=game.over,
        reward=reward.total if game.over else None,
        score=reward.total,
        parts={name: round(value, 6) + 0.0 for name, value in asdict(reward).items()},
    )
