"""Who the tiny policy learns from: Wordle played in this process, by a strong player and by a random one.

Knows the rules and what the environment answers. Knows no tokens and no model.
"""

import random
from collections import Counter
from string import ascii_lowercase
from typing import Any

from shared.wordle import GUESSES, LETTERS, PROMPT, WordList, feedback, render, secret_for
from trainer_box.conversation import Message, tool_call, tool_result


class PracticeWordle:
    """The environment's game without its server: same words, texts and reward."""

    def __init__(self, words: WordList) -> None:
        self._words = words
        self._secret, self._guesses, self._best, self._invalid = "", list[str](), 0, 0

    def reset(self, seed: int, **row: Any) -> str:
        self._secret, self._guesses, self._best, self._invalid = secret_for(seed, self._words), [], 0, 0
        return PROMPT

    def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: A 5-letter English word.
        """
        word = str(word).strip().lower()
        if self._over:
            return "game over"
        self._guesses.append(word)
        return f"{self._judge(word) if word in self._words.allowed else self._refuse()} {self._status()}"

    def get_reward(self) -> float:
        """A win is worth more the sooner; else a little for the best guess. Invalid and unplayed guesses cost."""
        if self._won:
            return 1.0 - 0.05 * (len(self._guesses) - 1) - 0.1 * self._invalid
        return 0.02 * self._best - 0.1 * (self._invalid + GUESSES - len(self._guesses))

    @property
    def _won(self) -> bool:
        return self._guesses[-1:] == [self._secret]

    @property
    def _over(self) -> bool:
        return self._won or len(self._guesses) == GUESSES

    def _judge(self, word: str) -> str:
        marks = feedback(word, self._secret)
        self._best = max(self._best, 2 * marks.count("+") + marks.count("?"))
        return render(word, marks)

    def _refuse(self) -> str:
        self._invalid += 1
        return "invalid word"

    def _status(self) -> str:
        if self._won:
            return "won"
        left = GUESSES - len(self._guesses)
        return f"{left} left" if left else "lost"


class Teacher:
    """Plays games to learn from, drawing all its choices from one generator."""

    def __init__(self, words: WordList, rng: random.Random) -> None:
        self._words, self._rng = words, rng
        self._marks = {(guess, secret): feedback(guess, secret) for guess in words.answers for secret in words.answers}
        self._opener = min(words.answers, key=self._expected_left)

    def strong_game(self, secret: str) -> list[str]:
        """The best opener, then always a random word that agrees with all feedback so far."""
        guesses, candidates = [self._opener], list(self._words.answers)
        while guesses[-1] != secret and len(guesses) < GUESSES:
            candidates = self._consistent(candidates, guesses[-1], secret)
            guesses.append(self._rng.choice(candidates))
        return guesses

    def random_game(self, secret: str) -> list[str]:
        guesses = [careless_guess(self._words, self._rng)]
        while guesses[-1] != secret and len(guesses) < GUESSES:
            guesses.append(careless_guess(self._words, self._rng))
        return guesses

    def game(self, strong_share: float) -> list[Message]:
        """One whole conversation, about a random word, that ends when the assistant has nothing left to guess."""
        seed = self._rng.randrange(1 << 30)
        secret = secret_for(seed, self._words)
        player = self.strong_game if self._rng.random() < strong_share else self.random_game
        return conversation(self._words, seed, player(secret))

    def _consistent(self, candidates: list[str], guess: str, secret: str) -> list[str]:
        marks = self._marks[guess, secret]
        return [word for word in candidates if word != guess and self._marks[guess, word] == marks]

    def _expected_left(self, guess: str) -> int:
        return sum(n * n for n in Counter(self._marks[guess, secret] for secret in self._words.answers).values())


def careless_guess(words: WordList, rng: random.Random) -> str:
    """A word drawn without a thought. One in twenty is misspelt, to show how a game goes on after an invalid guess."""
    word = rng.choice(words.answers)
    if rng.random() < 0.95:
        return word
    place = rng.randrange(LETTERS)
    return word[:place] + rng.choice(ascii_lowercase) + word[place + 1 :]


def conversation(words: WordList, seed: int, guesses: list[str]) -> list[Message]:
    game = PracticeWordle(words)
    messages: list[Message] = [{"role": "user", "content": game.reset(seed)}]
    for word in guesses:
        messages.append(tool_call("guess", word=word.upper()))
        messages.append(tool_result("guess", game.guess(word)))
    return [*messages, {"role": "assistant", "content": "ok"}]
