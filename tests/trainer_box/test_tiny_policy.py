"""The demo's model as it is shipped, and the parts that make it: tokenizer, teacher, transcript, warm start."""

import asyncio
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import get_json_schema
from trl.chat_template_utils import add_response_schema

from shared.wordle import GUESSES, PROMPT, feedback, load_words, secret_for
from space_env.wordle import Game
from trainer_box.conversation import Message, parse_answer, render
from trainer_box.environment import TinyWordle
from trainer_box.evaluate import EVALUATION_SEEDS, Generate, evaluate, local_policy
from trainer_box.teacher import PracticeWordle, Teacher, conversation
from trainer_box.tiny_policy import Transcript, build_model, tiny_policy_path, train
from trainer_box.tiny_tokenizer import SPECIAL, VOCABULARY, build_tokenizer

WORDS = load_words("tiny")
TOOLS = [PracticeWordle(WORDS).guess]
LIMIT_BYTES = 2_000_000


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_policy_path())


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32)


def games(count: int) -> list[list[Message]]:
    teacher = Teacher(WORDS, random.Random(5))
    return [teacher.game(strong_share=0.5) for _ in range(count)]


def test_the_shipped_files_are_small_and_in_bfloat16() -> None:
    folder = tiny_policy_path()
    assert sum(path.stat().st_size for path in folder.iterdir()) < LIMIT_BYTES
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}


def test_float32_master_weights_cast_back_to_the_shipped_bits(model: PreTrainedModel) -> None:
    weights = dict(model.named_parameters())
    with safe_open(tiny_policy_path() / "model.safetensors", framework="pt") as shipped:
        assert set(shipped.keys()) == set(weights)
        for name in shipped.keys():
            assert torch.equal(
                shipped.get_tensor(name).view(torch.int16), weights[name].to(torch.bfloat16).view(torch.int16)
            ), name


def test_the_same_seed_builds_the_shipped_tokenizer(tmp_path: Path) -> None:
    build_tokenizer(WORDS, seed=0).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (tiny_policy_path() / name).read_bytes(), name


def test_trl_knows_the_chat_template() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy_path())
    assert add_response_schema(tokenizer).response_template is not None


@pytest.mark.parametrize(
    "text", [PROMPT, "C-R?A+N-E- 5 left", "invalid word lost", "any other text: \u00fc, 1+1=2\n", "{}" * 20]
)
def test_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_guesses_and_feedback_are_one_token_per_letter(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.tokenize("CRANE") == list("CRANE")
    assert tokenizer.tokenize("Q-R?A+Z?X-") == ["Q-", "R?", "A+", "Z?", "X-"]
    assert len(tokenizer) == VOCABULARY
    assert all(len(tokenizer.encode(token)) == 1 for token in SPECIAL)


def test_each_turn_renders_as_a_continuation_of_the_last(tokenizer: PreTrainedTokenizerBase) -> None:
    for messages in games(10):
        prompts = [render(tokenizer, messages[:end], TOOLS) for end in range(1, len(messages), 2)]
        for shorter, longer in zip(prompts, prompts[1:], strict=False):
            assert longer[: len(shorter)] == shorter


def test_a_transcript_equals_the_rendered_conversation(tokenizer: PreTrainedTokenizerBase) -> None:
    transcript = Transcript(tokenizer, WORDS)
    for messages in games(10):
        ids, _ = transcript.tokens(messages)
        assert render(tokenizer, messages, TOOLS, answer_next=False) == ids + tokenizer.encode("\n")


def test_a_transcript_marks_what_the_assistant_wrote(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = conversation(WORDS, seed=1, guesses=["crane"])
    ids, written = Transcript(tokenizer, WORDS).tokens(messages)
    text = tokenizer.decode([token for token, mine in zip(ids, written, strict=True) if mine])
    call = '<tool_call>\n{"name": "guess", "arguments": {"word": "CRANE"}}\n</tool_call><|im_end|>'
    assert text == call + "ok<|im_end|>"


def test_the_strong_teacher_guesses_only_what_all_feedback_allows() -> None:
    teacher = Teacher(WORDS, random.Random(0))
    for secret in WORDS.answers[::4]:
        guesses = teacher.strong_game(secret)
        assert len(guesses) <= GUESSES
        for turn, guess in enumerate(guesses):
            assert all(feedback(earlier, guess) == feedback(earlier, secret) for earlier in guesses[:turn])


def test_games_end_with_the_secret_or_with_the_last_try() -> None:
    teacher = Teacher(WORDS, random.Random(0))
    for play in (teacher.strong_game, teacher.random_game):
        for secret in WORDS.answers[::8]:
            guesses = play(secret)
            assert guesses.index(secret) == len(guesses) - 1 if secret in guesses else len(guesses) == GUESSES


def test_only_the_random_player_makes_invalid_guesses_and_few() -> None:
    teacher = Teacher(WORDS, random.Random(0))
    strong = {guess for secret in WORDS.answers for guess in teacher.strong_game(secret)}
    careless = [guess for secret in WORDS.answers for guess in teacher.random_game(secret)]
    assert strong <= WORDS.allowed
    assert 0 < sum(guess not in WORDS.allowed for guess in careless) < len(careless) / 10


def test_the_practice_game_is_the_environments_game() -> None:
    rng = random.Random(0)
    practice = PracticeWordle(WORDS)
    for seed in range(200):
        practice.reset(seed=seed)
        game = Game(secret_for(seed, WORDS), WORDS)
        while not game.over and rng.random() < 0.95:
            word = rng.choice([*WORDS.answers[:8], "qqqqq", "abc", game.secret, " Trace "])
            assert practice.guess(word) == game.guess(word).text
        assert practice.get_reward() == pytest.approx(game.reward().total)


def test_the_model_saw_the_tool_that_the_environment_offers() -> None:
    assert get_json_schema(PracticeWordle(WORDS).guess) == get_json_schema(TinyWordle("http://127.0.0.1:1").guess)


def test_the_model_saw_the_opening_observation_that_the_environment_returns() -> None:
    assert TinyWordle("http://127.0.0.1:1").reset(seed=0) == PracticeWordle(WORDS).reset(seed=0) == PROMPT


def test_the_shipped_model_calls_its_tool(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    torch.manual_seed(0)
    prompt = render(tokenizer, [{"role": "user", "content": PROMPT}], TOOLS)
    answers = asyncio.run(local_policy(model, tokenizer, temperature=1.0)([prompt] * 40))
    messages = [parse_answer(tokenizer, prompt, answer, TOOLS) for answer in answers]
    calls = [call["function"] for message in messages for call in message.get("tool_calls", [])]
    assert all(call["name"] == "guess" for call in calls)
    assert sum(len(call["arguments"]["word"]) == 5 for call in calls) >= 32  # of 40: it is weak on purpose


def play(generate: Generate, tokenizer: PreTrainedTokenizerBase) -> float:
    seeds = EVALUATION_SEEDS[:30]
    return asyncio.run(evaluate(generate, tokenizer, lambda: PracticeWordle(WORDS), seeds)).solve_rate


def test_the_shipped_model_is_a_weak_start(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    torch.manual_seed(0)
    greedy, sampled = local_policy(model, tokenizer), local_policy(model, tokenizer, temperature=1.0)
    assert 0.25 < play(greedy, tokenizer) < 0.95
    assert play(sampled, tokenizer) < 0.4


def test_a_warm_start_is_reproducible_and_learns(tokenizer: PreTrainedTokenizerBase) -> None:
    def weights_and_loss() -> tuple[torch.Tensor, float]:
        torch.manual_seed(3)
        teacher, transcript = Teacher(WORDS, random.Random(3)), Transcript(tokenizer, WORDS)
        model = build_model(tokenizer)
        loss = train("test", model, lambda: transcript.tokens(teacher.game(1.0)), steps=6, peak_rate=3e-3)
        return torch.cat([weight.detach().flatten() for weight in model.parameters()]), loss

    (first, loss), (second, _) = weights_and_loss(), weights_and_loss()
    assert torch.equal(first, second)
    assert loss < 6.0
