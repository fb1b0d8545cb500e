"""Clients that ask the Space all the time, whatever happens to it, and a judge of what they were answered.

An answer of status 200 must be what a published version answers. A request in flight goes on across a sync, so its
first tokens may be those of one version and the rest those of later ones, never of an earlier one.
"""

import http.client
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

import torch

from tests.space_vllm.live_server import Server
from tests.space_vllm.tiny import Weights, with_weights

PROMPTS = (list(range(7, 31)), [5, 250, 5, 17])
TOKENS = 16
CLOSE = 0.05  # how much less likely a token may be than the likeliest, as a logarithm
_BETWEEN_S, _AFTER_FAILURE_S = 0.2, 0.5
_DEADLINE_S = 120.0

Answer = tuple[int, tuple[int, ...]]  # which prompt, and what came back


@dataclass
class Asked:
    """`refused` counts what was not answered with status 200."""

    answers: list[Answer] = field(default_factory=list)
    refused: int = 0

    def wait_for_each(self) -> None:
        """Until each client has one more answer."""
        start, deadline = len(self.answers), time.monotonic() + _DEADLINE_S
        while {number for number, _ in self.answers[start:]} != set(range(len(PROMPTS))):
            assert time.monotonic() < deadline, f"clients got no answers for {_DEADLINE_S} s"
            time.sleep(0.05)


@contextmanager
def asking(server: Server) -> Iterator[Asked]:
    """Each client asks one completion after the other until the end; all have an answer by the beginning."""
    asked, stop = Asked(), Event()

    def client(number: int) -> None:
        while not stop.is_set():
            tokens = _ask(server, PROMPTS[number])
            if tokens:
                asked.answers.append((number, tuple(tokens)))
            else:
                asked.refused += 1
            stop.wait(_BETWEEN_S if tokens else _AFTER_FAILURE_S)

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        work = [pool.submit(client, number) for number in range(len(PROMPTS))]
        try:
            asked.wait_for_each()
            yield asked
        finally:
            stop.set()
        for task in work:
            task.result()


def _ask(server: Server, prompt: list[int]) -> list[int]:
    """Nothing unless the whole answer arrives, with status 200."""
    try:
        return server.greedy(prompt, TOKENS)[1]
    except (OSError, http.client.HTTPException, ValueError):
        return []


class Judge:
    def __init__(self, versions: Sequence[Weights]) -> None:
        """In the order in which they were published."""
        self._models = [with_weights(weights).float() for weights in versions]

    def unverified(self, answers: Sequence[Answer]) -> int:
        """How many tokens are in answers that no published version explains."""
        wrong = {answer for answer in set(answers) if not self._explains(PROMPTS[answer[0]], list(answer[1]))}
        return sum(len(answer[1]) for answer in answers if answer in wrong)

    def _explains(self, prompt: list[int], tokens: list[int]) -> bool:
        regrets = torch.stack([_regrets(model, prompt, tokens) for model in self._models])
        version = 0
        for position in range(len(tokens)):
            fitting = (regrets[version:, position] < CLOSE).nonzero()
            if not len(fitting):
                return False
            version += int(fitting[0])  # the earliest leaves most open
        return True


@torch.no_grad()
def _regrets(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """How much less likely each token is than the likeliest in its place."""
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    chosen: torch.Tensor = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    found: torch.Tensor = logits.max(1).values - chosen
    return found
