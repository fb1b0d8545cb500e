"""Wordle as TRL's rollouts see it: the opening observation, one tool, one reward, one seed per row.

The game itself is played by the server; this file knows how to reach it, and how to get a game back after a lost
connection: reset to the same seed, then play the same guesses again, and see that the answers are the same.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import stamina
import websockets.asyncio.client
from datasets import Dataset
from openenv.core.client_types import StepResult
from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed, InvalidStatus

from shared.errors import SyncError
from shared.wordle import PROMPT
from trainer_box.headers import environment_headers
from trainer_box.reward import Reward

# A redirect would lead the Hub's token away: on its way the client drops the usual credentials only.
websockets.asyncio.client.MAX_REDIRECTS = 1

TRAINING_SEEDS = range(1_000_000)
"""Evaluation plays seeds from 1,000,000 on."""

GAME_OVER = "game over"
MESSAGE_SECONDS = 20.0
RETRY_SECONDS = 180.0
MAX_SENT_LETTERS = 32
FULL = "CAPACITY_REACHED"


class CutOffError(ConnectionError):
    """The server does not have this game any more, and may get it back."""


class ChangedError(Exception):
    """The server answered guesses of the same seed otherwise than before: what was played cannot be had again."""


FAILURES = (OSError, ConnectionClosed, RuntimeError, ValueError, ChangedError)

_retrying = stamina.AsyncRetryingCaller(attempts=None, timeout=RETRY_SECONDS, wait_max=5.0, wait_jitter=1.0)


def may_pass(error: Exception) -> bool:
    """Whether the same request may succeed later. Not so for a wrong key, or a request the server understood."""
    if isinstance(error.__cause__, InvalidStatus):
        return error.__cause__.response.status_code not in (401, 403)
    return isinstance(error, OSError | ConnectionClosed) or FULL in str(error)


class Wordle:
    """The environment class for AsyncGRPOTrainer, as `functools.partial(Wordle, "http://127.0.0.1:7860")`.

    An instance plays one game after the other over one connection, which the first guess opens. It may move to another
    event loop: the connection is then replaced and the game played again up to where it was. `shaping` names weights
    of the reward that differ from the environment's own; with `reasons`, the tool says why a guess is invalid.
    """

    def __init__(
        self, url: str, words: str = "full", shaping: Mapping[str, float] | None = None, reasons: bool = True
    ) -> None:
        self._url = url
        self._default_words = words
        self._shaping = dict(shaping or {})
        self._reasons = reasons
        self._client: GenericEnvClient | None = None
        self._turn = asyncio.Lock()  # of calls at once each would read the answer to another one
        self._begin(0, words)

    def reset(self, seed: int | None = None, words: str | None = None, **row: Any) -> str:
        """Takes the game of a dataset row, and returns the opening observation. No traffic yet: TRL awaits the resets
        of all rollouts one by one. Raises SyncError for a row without a seed."""
        if seed is None:
            raise SyncError("a row has no `seed`: the rollouts of its group would get different words; add one")
        self._begin(seed, words or self._default_words)
        return PROMPT

    async def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: A 5-letter English word.
        """
        async with self._turn:
            if self._failure is not None:
                raise ConnectionError("this game is lost: the environment was out of reach")
            if self._last.get("done"):
                return GAME_OVER
            self._guesses.append(str(word).strip().encode("ascii", "replace").decode()[:MAX_SENT_LETTERS])
            answer = await self._play()
        return f"{answer['text']} ({answer['reason']})" if answer["reason"] and self._reasons else str(answer["text"])

    async def get_reward(self) -> Reward | None:
        """What the game pays as it stands, with `solved` and the sums it is made of as parts; None for a game whose
        connection was lost for good, which TRL leaves out.

        Raises SyncError when the server refuses to play at all, so that training stops instead of learning nothing.
        """
        async with self._turn:
            if not self._in_step and self._failure is None:
                with suppress(*FAILURES):  # kept in self._failure
                    await self._play()
        if self._failure is None:
            sums = {f"reward_{name}": float(value) for name, value in self._last["parts"].items()}
            return Reward(self._last["score"], {"solved": float(self._last["won"]), **sums})
        if may_pass(self._failure) or isinstance(self._failure, ChangedError):
            return None
        raise SyncError(
            f"the environment at {self._url} refuses to play: {self._failure}; ENV_API_KEY must hold its key, if any"
        ) from self._failure

    def _begin(self, seed: int, words: str) -> None:
        self._seed = seed
        self._words = words
        self._guesses: list[str] = []
        self._answers: list[str] = []
        self._in_step = False
        self._last: dict[str, Any] = {}
        self._failure: Exception | None = None

    async def _play(self) -> dict[str, Any]:
        """Brings the server to where this game is, and returns the last observation."""
        try:
            self._last = await _retrying(may_pass, self._catch_up)
        except FAILURES as error:
            self._failure = error
            raise
        return self._last

    async def _catch_up(self) -> dict[str, Any]:
        client = self._connection()
        # Until every answer is in, the server may have played a guess or not: the next attempt starts from the reset.
        in_step, self._in_step = self._in_step, False
        if in_step:
            result = await self._step(client, self._guesses[-1])
            self._note(len(self._guesses) - 1, result.observation["text"])
        else:
            result = await self._replay(client)
        self._in_step = True
        return {**result.observation, "done": result.done}

    async def _replay(self, client: GenericEnvClient) -> StepResult[dict[str, Any]]:
        result = await client.reset(seed=self._seed, words=self._words, shaping=self._shaping)
        for number, word in enumerate(self._guesses):
            result = await self._step(client, word)
            self._note(number, result.observation["text"])
        return result

    def _note(self, number: int, answer: str) -> None:
        """Keeps the answer to a guess; raises ChangedError when it was another one before."""
        if number == len(self._answers):
            self._answers.append(answer)
        elif self._answers[number] != answer:
            before = self._answers[number]
            raise ChangedError(f"guess {number + 1} of seed {self._seed} was {before!r} and is {answer!r} now")

    async def _step(self, client: GenericEnvClient, word: str) -> StepResult[dict[str, Any]]:
        try:
            return await client.step({"word": word})
        except RuntimeError as error:
            if FULL in str(error):
                raise
            raise CutOffError(f"the environment lost the game of seed {self._seed}: {error}") from error

    def _connection(self) -> GenericEnvClient:
        if self._client is None:
            headers = environment_headers(self._url)
            self._client = GenericEnvClient(self._url, message_timeout_s=MESSAGE_SECONDS, headers=headers)
        return self._client


class TinyWordle(Wordle):
    """The game of the demo's model: the words and the short answers that it was made with."""

    def __init__(self, url: str) -> None:
        super().__init__(url, words="tiny", reasons=False)


def dataset(rows: int = 4000, seed: int = 0) -> Dataset:
    """Training rows of `prompt`, to which the opening observation is added, and `seed`: all rollouts of a row's group
    play one secret. At most 1,000,000 rows."""
    seeds = random.Random(seed).sample(TRAINING_SEEDS, rows)
    return Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], "seed": s} for s in seeds])
