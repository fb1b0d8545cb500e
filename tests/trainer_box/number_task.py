"""A task outside the project: its source, to be put into a folder of its own, and a policy that plays it."""

import itertools
from typing import Any

from transformers import PreTrainedTokenizerBase

from tests.trainer_box.fake_space import Complete

MODULE = "mytask"
SOURCE = '''
from datasets import Dataset

from trainer_box.reward import Reward


class Guess:
    """One guess at a number from 0 to 3."""

    def reset(self, secret, **row):
        self.secret, self.tried = secret, None
        return " It is at most 3."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: From 0 to 3.
        """
        self.tried = number
        return "right" if number == self.secret else "wrong"

    def get_reward(self):
        distance = 4 if self.tried is None else abs(self.tried - self.secret)
        return Reward(1 - distance / 4, {"solved": float(distance == 0)})


def rows():
    prompt = [{"role": "user", "content": "Guess a number."}]
    return Dataset.from_list([{"prompt": prompt, "secret": i % 4} for i in range(64)])


def bonus(completions, **columns):
    return [0.5 if completion[0].get("tool_calls") else 0.0 for completion in completions]
'''


def policy(tokenizer: PreTrainedTokenizerBase) -> Complete:
    """Guesses one number after the other, each conversation once."""
    numbers = itertools.cycle(range(4))

    def complete(body: dict[str, Any]) -> tuple[list[int], list[float]]:
        text = "<|im_end|>"
        if "<tool_response>" not in tokenizer.decode(body["prompt"]):
            call = f'{{"name": "guess", "arguments": {{"number": {next(numbers)}}}}}'
            text = f"<tool_call>\n{call}\n</tool_call><|im_end|>"
        tokens: list[int] = tokenizer.encode(text)
        return tokens, [-1.0] * len(tokens)

    return complete
