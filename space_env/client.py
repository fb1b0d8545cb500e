"""A typed client for the environment. It does not replay a game after a lost connection: the server then says so."""

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient

from space_env.models import WordleAction, WordleObservation, WordleState


class WordleClient(EnvClient[WordleAction, WordleObservation, WordleState]):
    """`await client.reset(seed=7, words="tiny")`, then `await client.step(WordleAction(word="crane"))`."""

    def _step_payload(self, action: WordleAction) -> dict[str, Any]:
        return {"word": action.word}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[WordleObservation]:
        reward, done = payload["reward"], payload["done"]
        observation = WordleObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> WordleState:
        return WordleState(**payload)
