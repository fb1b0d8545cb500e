"""Whole games with scripted policies: what evaluate counts, and that it builds conversations as TRL's rollouts do."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl.chat_template_utils import add_response_schema, get_training_chat_template, parse_response

from shared.errors import SyncError
from shared.wordle import PROMPT, load_words, secret_for
from tests.trainer_box.completions_server import completions_server
from trainer_box.conversation import parse_answer, render, rollout_template, tool_call, tool_result
from trainer_box.evaluate import AT_ONCE, Environment, Score, evaluate, served_policy
from trainer_box.teacher import PracticeWordle
from trainer_box.tiny_policy import tiny_policy_path

WORDS = load_words("tiny")
SEED = 1_000_000
SECRET = secret_for(SEED, WORDS).upper()
OTHERS = [word.upper() for word in WORDS.answers if word.upper() != SECRET]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_policy_path())


def practice() -> PracticeWordle:
    return PracticeWordle(WORDS)


class AsyncWordle:
    """The same game behind coroutine functions, as an environment on the network has them."""

    def __init__(self) -> None:
        self._game = practice()

    def reset(self, **row: object) -> str:
        return self._game.reset(seed=int(str(row["seed"])))

    async def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: A 5-letter English word.
        """
        return self._game.guess(word)

    async def get_reward(self) -> float:
        return self._game.get_reward()


class RewardlessWordle(PracticeWordle):
    def __init__(self) -> None:
        super().__init__(WORDS)

    def get_reward(self) -> float:
        return None  # type: ignore[return-value]


class Script:
    """A policy that says the same in every game: one text per turn, then nothing more. Keeps the prompts it got."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> None:
        self._tokenizer, self._texts = tokenizer, list(texts)
        self.rounds: list[list[list[int]]] = []

    async def __call__(self, prompts: list[list[int]]) -> list[list[int]]:
        self.rounds.append(prompts)
        text = self._texts.pop(0) if self._texts else "ok<|im_end|>"
        return [self._tokenizer.encode(text, add_special_tokens=False) for _ in prompts]


def call(word: object, name: str = "guess") -> str:
    arguments = json.dumps({"word": word})
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call><|im_end|>'


def play(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], seeds: Sequence[int] = (SEED,)) -> Score:
    return asyncio.run(evaluate(Script(tokenizer, texts), tokenizer, practice, seeds))


def test_a_known_game_is_won_in_the_second_turn(tokenizer: PreTrainedTokenizerBase) -> None:
    score = play(tokenizer, [call(OTHERS[0]), call(SECRET)])
    assert score == Score(games=1, solve_rate=1.0, mean_reward=0.95, invalid_per_game=0, mean_turns=2)


def test_a_won_game_is_not_played_on(tokenizer: PreTrainedTokenizerBase) -> None:
    script = Script(tokenizer, [call(SECRET), call(OTHERS[0])])
    asyncio.run(evaluate(script, tokenizer, practice, [SEED]))
    assert len(script.rounds) == 1


def test_invalid_guesses_are_counted_and_use_up_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    score = play(tokenizer, [call("QQQQQ"), call("TOOLONG"), call(OTHERS[0]), call(OTHERS[0]), call(SECRET)])
    assert (score.solve_rate, score.invalid_per_game, score.mean_turns) == (1.0, 2, 5)
    assert score.mean_reward == pytest.approx(1 - 0.05 * 4 - 0.1 * 2)


def test_a_lost_game_ends_after_six_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    script = Script(tokenizer, [call(word) for word in OTHERS[:8]])
    score = asyncio.run(evaluate(script, tokenizer, practice, [SEED]))
    assert (score.solve_rate, score.mean_turns, score.invalid_per_game) == (0.0, 6, 0)
    assert len(script.rounds) == 6


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "ok<|im_end|>",
        "<tool_call><|im_end|>",
        "<tool_call>\n{not json}\n</tool_call><|im_end|>",
        "<tool_call>\n[1, 2]\n</tool_call><|im_end|>",
        '<tool_call>\n{"arguments": {"word": "CRANE"}}\n</tool_call><|im_end|>',
        "</tool_call></think><think><|im_start|><|endoftext|>",
    ],
)
def test_garbage_gives_the_game_up(tokenizer: PreTrainedTokenizerBase, garbage: str) -> None:
    score = play(tokenizer, [garbage, call(SECRET)])
    assert (score.solve_rate, score.invalid_per_game, score.mean_turns) == (0.0, 0, 0)
    assert score.mean_reward == pytest.approx(-0.6)


@pytest.mark.parametrize("answer", [call("CRANE", name="look"), call("CRANE").replace('"word"', '"letter"')])
def test_a_call_that_fits_no_tool_is_answered_with_an_error(tokenizer: PreTrainedTokenizerBase, answer: str) -> None:
    script = Script(tokenizer, [answer, call(SECRET)])
    score = asyncio.run(evaluate(script, tokenizer, practice, [SEED]))
    assert (score.solve_rate, score.mean_turns) == (1.0, 1)
    assert "error" in tokenizer.decode(script.rounds[1][0])


def test_a_word_that_is_not_a_string_is_an_invalid_guess(tokenizer: PreTrainedTokenizerBase) -> None:
    assert play(tokenizer, [call(12345)]).invalid_per_game == 1


def test_more_seeds_than_games_at_once_are_played_in_blocks(tokenizer: PreTrainedTokenizerBase) -> None:
    seeds = range(SEED, SEED + AT_ONCE + 5)
    script = Script(tokenizer, [])
    assert asyncio.run(evaluate(script, tokenizer, practice, seeds)).games == AT_ONCE + 5
    assert [len(prompts) for prompts in script.rounds] == [AT_ONCE, 5]


def test_environments_with_coroutines_score_the_same(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = [call(OTHERS[0]), call(SECRET)]
    score = asyncio.run(evaluate(Script(tokenizer, texts), tokenizer, AsyncWordle, [SEED]))
    assert score == play(tokenizer, texts)


def test_a_game_without_a_reward_is_an_error(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(SyncError, match=f"no reward for the game of seed {SEED}"):
        asyncio.run(evaluate(Script(tokenizer, []), tokenizer, RewardlessWordle, [SEED]))


def test_no_seeds_and_a_foreign_chat_template_are_refused() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy_path())
    with pytest.raises(ValueError, match="no seeds"):
        play(tokenizer, [], seeds=[])
    tokenizer.chat_template = "{{ messages }}"
    with pytest.raises(ValueError, match="is not Qwen3's as TRL knows it"):
        play(tokenizer, [])


def test_prompts_are_what_trl_renders(tokenizer: PreTrainedTokenizerBase) -> None:
    assert rollout_template() == get_training_chat_template(tokenizer)
    script = Script(tokenizer, [call(OTHERS[0]), call(SECRET)])
    asyncio.run(evaluate(script, tokenizer, practice, [SEED]))
    game = practice()
    game.reset(seed=SEED)
    reply = tool_result("guess", game.guess(OTHERS[0]))
    messages = [{"role": "user", "content": PROMPT}, tool_call("guess", word=OTHERS[0]), reply]
    assert script.rounds[1][0] == render(tokenizer, messages, [game.guess])


@pytest.mark.parametrize(
    "text",
    [
        call("CRANE"),
        call("CRANE").removesuffix("<|im_end|>"),
        "I think " + call("CRANE"),
        "<think>\nhm\n</think>\n\n" + call("CRANE"),
        call("CRANE").replace("<|im_end|>", "\n") + call("SLATE"),
        '<tool_call>\n{"name": "guess"}\n</tool_call><|im_end|>',
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call><|im_end|>',
        '<tool_call>\n"guess"\n</tool_call><|im_end|>',
        "<tool_call>\n{not json}\n</tool_call><|im_end|>",
        "ok<|im_end|>",
    ],
)
def test_answers_are_read_as_trl_reads_them(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    theirs = add_response_schema(AutoTokenizer.from_pretrained(tiny_policy_path()))
    tools = [practice().guess]
    prompt = render(tokenizer, [{"role": "user", "content": PROMPT}], tools)
    answer = tokenizer.encode(text, add_special_tokens=False)
    assert parse_answer(tokenizer, prompt, answer, tools) == parse_response(theirs, answer, prefix=prompt, tools=tools)


def test_a_served_policy_sends_ids_and_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "the-key")
    with completions_server() as server:

        async def ask() -> list[list[int]]:
            async with served_policy(server.url, "tiny") as generate:
                return await generate([[1, 2], [3]])

        assert asyncio.run(ask()) == [[1, 2, 7], [3, 7]]
        assert server.keys == ["Bearer the-key"] * 2
        assert all(
            body["model"] == "tiny" and body["temperature"] == 0 and body["max_tokens"] == 16 for body in server.bodies
        )


def test_a_refusing_a_silent_and_a_missing_server_are_errors_with_a_sentence() -> None:
    async def ask(url: str, model: str, deadline_s: float = 60.0) -> None:
        async with served_policy(url, model, deadline_s=deadline_s) as generate:
            await generate([[1]])

    with completions_server() as server:
        with pytest.raises(SyncError, match="refused a completion of model 'unknown' with 404"):
            asyncio.run(ask(server.url, "unknown"))
        with pytest.raises(SyncError, match=r"did not answer 1 prompts in 0\.3 s"):
            asyncio.run(ask(server.url, "silent", deadline_s=0.3))
    with pytest.raises(SyncError, match="is unreachable"):
        asyncio.run(ask(server.url, "tiny"))


def test_the_environment_protocol_fits_the_practice_game() -> None:
    environment: Environment = practice()
    environment.reset(prompt=[], seed=SEED)
    assert environment.guess(SECRET) == "".join(letter + "+" for letter in SECRET) + " won"
