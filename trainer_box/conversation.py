"""How a conversation with tools becomes token ids, and how generated ids become a message: exactly as TRL's rollouts
do it for Qwen3's chat template, so that what is evaluated is what was trained. Knows no game, no model, no server.
"""

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
Tool = Callable[..., Any]

RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


@cache
def qwen3_template() -> str:
    """The template that tokenizers carry. TRL recognises it by its exact text."""
    return _trl_template("qwen3.jinja")


@cache
def rollout_template() -> str:
    """What TRL renders rollouts with in its place: earlier messages look the same whatever follows them."""
    return _trl_template("qwen3_training.jinja")


def _trl_template(filename: str) -> str:
    return files("trl").joinpath("chat_templates", filename).read_text(encoding="utf-8")


def check_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """ValueError when the tokenizer is not one that this module renders as TRL would."""
    if tokenizer.chat_template != qwen3_template():
        raise ValueError(
            f"the chat template of {tokenizer.name_or_path!r} is not Qwen3's as TRL knows it; "
            "use a Qwen3 model, or set tokenizer.chat_template to trl/chat_templates/qwen3.jinja"
        )


def render(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: list[Tool], *, answer_next: bool = True
) -> list[int]:
    """Token ids of the whole conversation, by default up to where the model's next answer begins."""
    ids: list[int] = tokenizer.apply_chat_template(
        messages,
        tools=tools,
        chat_template=rollout_template(),
        add_generation_prompt=answer_next,
        return_dict=False,
        enable_thinking=False,
    )
    return ids


def parse_answer(
    tokenizer: PreTrainedTokenizerBase, prompt: list[int], answer: list[int], tools: list[Tool]
) -> Message:
    """The assistant message in the generated ids; plain text when its tool calls cannot be read."""
    text = tokenizer.decode(answer)  # an empty list of ids would be taken for an empty batch
    try:
        message: Message = tokenizer.parse_response(text, schema=RESPONSE_TEMPLATE, prefix=prompt, tools=tools)
        for call in message.get("tool_calls", []):
            _check_call(call["function"])
    except (ValueError, TypeError):
        return {"role": "assistant", "content": tokenizer.decode(answer, skip_special_tokens=True)}
    message["content"] = message.get("content") or ""
    return message


def _check_call(function: Any) -> None:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"not a tool call: {function!r}")
    if function.get("arguments") is None:
        function["arguments"] = {}


def tool_call(name: str, **arguments: Any) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def tool_result(name: str, content: str) -> Message:
    return {"role": "tool", "name": name, "content": content}
