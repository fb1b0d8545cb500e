"""The demo's model: a Qwen3 of 0.7 M parameters, warm-started to play Wordle legally and badly, from one seed.

    python -m trainer_box.tiny_policy [--out DIR] [--seed N]

It first learns from a strong player, then is softened with a random one: reinforcement learning on few games can bring
the strong habits back, but not teach them. Knows no server and no reinforcement learning.
"""

import argparse
import asyncio
import math
import random
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from shared.wordle import PROMPT, WordList, load_words
from trainer_box.conversation import Message, render, tool_call
from trainer_box.evaluate import EVALUATION_SEEDS, Score, evaluate, local_policy
from trainer_box.teacher import PracticeWordle, Teacher
from trainer_box.tiny_tokenizer import VOCABULARY, build_tokenizer

WORDS = "tiny"
GAMES_PER_STEP = 16


def tiny_policy_path() -> Path:
    """The folder with the shipped model, loadable with `from_pretrained` and by vLLM."""
    return Path(__file__).parent / "tiny"


def make_tiny_policy(out: Path, seed: int) -> None:
    """Writes model and tokenizer, weights in bfloat16. The same seed gives the same bytes on the same machine."""
    torch.set_num_threads(1)  # two are hardly faster on a model this small, and far slower on a busy machine
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    words = load_words(WORDS)
    tokenizer = build_tokenizer(words, seed)
    model = build_model(tokenizer)
    teacher, transcript = Teacher(words, random.Random(seed)), Transcript(tokenizer, words)
    train("strong", model, lambda: transcript.tokens(teacher.game(strong_share=1.0)), steps=650, peak_rate=3e-3)
    train("soften", model, lambda: transcript.tokens(teacher.game(strong_share=0.4)), steps=60, peak_rate=3e-4)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


class Transcript:
    """Conversations as token ids, put together from cached pieces: rendering each whole would take longer than
    training on it. A piece always ends at a special token, where no token of the tokenizer can span."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, words: WordList) -> None:
        self._tokenizer = tokenizer
        self._tools = [PracticeWordle(words).guess]
        self._pieces: dict[str, list[int]] = {}

    def tokens(self, messages: list[Message]) -> tuple[list[int], list[bool]]:
        """Ids, and which of them the assistant wrote, after the first message; equal to rendering it all at once."""
        ids, written = list(self._head), [False] * len(self._head)
        for message in messages[1:]:
            piece = self._piece(message)
            ids += piece
            written += [message["role"] == "assistant"] * len(piece)
        return ids, written

    @cached_property
    def _head(self) -> list[int]:
        return render(self._tokenizer, [{"role": "user", "content": PROMPT}], self._tools)

    def _piece(self, message: Message) -> list[int]:
        key = repr(message)
        if key not in self._pieces:
            self._pieces[key] = self._answer(message) if message["role"] == "assistant" else self._reply(message)
        return self._pieces[key]

    def _answer(self, message: Message) -> list[int]:
        ids = render(self._tokenizer, [{"role": "user", "content": PROMPT}, message], self._tools, answer_next=False)
        end = len(ids) - ids[::-1].index(self._tokenizer.eos_token_id)
        return ids[len(self._head) : end]

    def _reply(self, message: Message) -> list[int]:
        call = tool_call("guess", word="")
        ids = render(self._tokenizer, [{"role": "user", "content": PROMPT}, call, message], self._tools)
        return ids[len(self._head) + len(self._answer(call)) :]


def train(
    name: str,
    model: Qwen3ForCausalLM,
    next_game: Callable[[], tuple[list[int], list[bool]]],
    *,
    steps: int,
    peak_rate: float,
) -> float:
    """Next-token cross-entropy on the assistant's tokens, with a fresh AdamW and a cosine schedule. The last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    started = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak_rate * _schedule(step, steps)
        loss = _loss(model, [next_game() for _ in range(GAMES_PER_STEP)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 49 or step == steps - 1:
            print(f"{name} {step + 1}/{steps} loss {loss.item():.3f} {time.monotonic() - started:.0f}s", flush=True)
    return loss.item()


def _schedule(step: int, steps: int) -> float:
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / 20) * (0.1 + 0.9 * cosine)


def _loss(model: Qwen3ForCausalLM, games: list[tuple[list[int], list[bool]]]) -> Tensor:
    length = max(len(ids) for ids, _ in games)
    ids = torch.full((len(games), length), model.config.pad_token_id)
    written = torch.zeros(len(games), length, dtype=torch.bool)
    for row, (game_ids, game_written) in enumerate(games):
        ids[row, : len(game_ids)] = torch.tensor(game_ids)
        written[row, : len(game_ids)] = torch.tensor(game_written)
    hidden = model.model(ids).last_hidden_state[:, :-1]
    return F.cross_entropy(model.lm_head(hidden[written[:, 1:]]), ids[:, 1:][written[:, 1:]])


def score_policy(folder: Path, *, temperature: float) -> Score:
    """Plays the evaluation seeds with the stored weights, computed in float32."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    words = load_words(WORDS)
    generate = local_policy(model, tokenizer, temperature=temperature)
    return asyncio.run(evaluate(generate, tokenizer, lambda: PracticeWordle(words), EVALUATION_SEEDS))


def main() -> None:
    disable_progress_bar()
    parser = argparse.ArgumentParser(description="Makes the demo's model.")
    parser.add_argument("--out", type=Path, default=tiny_policy_path(), help="folder to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make_tiny_policy(args.out, args.seed)
    for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        score = score_policy(args.out, temperature=temperature)
        print(
            f"{name}: solved {score.solve_rate:.1%}, reward {score.mean_reward:.3f}, "
            f"{score.invalid_per_game:.2f} invalid guesses and {score.mean_turns:.2f} turns a game"
        )


if __name__ == "__main__":
    main()
