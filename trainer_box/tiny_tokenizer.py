"""The tiny policy's tokenizer: a small BPE trained on rendered games of Wordle, under Qwen3's chat template.

Knows what a game looks like as text. Knows no model and no training.
"""

import random
import re
from collections.abc import Iterator
from string import ascii_uppercase

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from shared.wordle import ABSENT, ELSEWHERE, GUESSES, RIGHT, WordList
from trainer_box.conversation import Message, qwen3_template, rollout_template
from trainer_box.teacher import PracticeWordle, careless_guess, conversation

VOCABULARY = 704
END_OF_TURN, PADDING = "<|im_end|>", "<|endoftext|>"
SPECIAL = (
    PADDING,
    "<|im_start|>",
    END_OF_TURN,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
MARKS = (RIGHT, ELSEWHERE, ABSENT)
_GAMES = 300


def build_tokenizer(words: WordList, seed: int) -> PreTrainedTokenizerFast:
    """Guesses stay one token per letter and feedback one token per letter and mark, so that the model can copy and
    compare them; everything that is the same in each game becomes a few long tokens."""
    bpe = Tokenizer(models.BPE())
    letters = pre_tokenizers.Split(Regex(f"[A-Z][{''.join(MARKS)}]?"), "isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [letters, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(_corpus(words, random.Random(seed)), _trainer())
    tokenizer = _wrap(bpe)
    tokenizer.chat_template = qwen3_template()
    return tokenizer


def _trainer() -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=120,
        show_progress=False,
    )


def _wrap(bpe: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END_OF_TURN, pad_token=PADDING, padding_side="left", model_max_length=1024
    )


def _corpus(words: WordList, rng: random.Random) -> Iterator[str]:
    """Random games as the chat template writes them, cut at the special tokens, and each letter with each mark often
    enough to come before all else."""
    yield from [letter + mark for letter in ascii_uppercase for mark in MARKS] * (2 * _GAMES)
    renderer = _wrap(Tokenizer(models.BPE()))
    tools = [PracticeWordle(words).guess]
    between = re.compile("|".join(map(re.escape, SPECIAL)))
    for _ in range(_GAMES):
        text = renderer.apply_chat_template(
            _random_game(words, rng),
            tools=tools,
            chat_template=rollout_template(),
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        yield from between.split(text)


def _random_game(words: WordList, rng: random.Random) -> list[Message]:
    guesses = [careless_guess(words, rng) for _ in range(rng.randint(1, GUESSES))]
    return conversation(words, rng.randrange(1 << 30), guesses)[:-1]
