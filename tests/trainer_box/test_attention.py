"""Packed attention against a plain transformers forward and against attention written out by hand."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from trainer_box.attention import flash_attn_varlen_func
from trainer_box.tiny_policy import tiny_policy_path

# isort: off
# the adapter comes first: it puts our attention in the place of FlashAttention
import trainer_box.trl_adapter  # noqa: F401
from trl.experimental.async_grpo.packing import TREE_ATTENTION, TreeRow, register_tree_attention
# isort: on

VOCABULARY = 600
PREFIX, TAILS = 20, (10, 11, 7, 1)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register_tree_attention()


def samples() -> list[torch.Tensor]:
    """Four sequences with one prompt, one of them forking from another in the middle, and one of its own."""
    random = torch.Generator().manual_seed(0)
    prefix = torch.randint(0, VOCABULARY, (PREFIX,), generator=random)
    made = [torch.cat([prefix, torch.randint(0, VOCABULARY, (tail,), generator=random)]) for tail in TAILS]
    fork = made[1].clone()
    fork[-3:] = torch.randint(0, VOCABULARY, (3,), generator=random)
    return [*made, fork, torch.randint(0, VOCABULARY, (9,), generator=random)]


def packed(sequences: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    row = TreeRow()
    for ids in sequences:
        mask = np.ones(len(ids), dtype=np.int64)
        zeros = np.zeros(len(ids), dtype=np.float32)
        sample = {"input_ids": ids.numpy(), "completion_mask": mask, "old_log_probs": zeros}
        row.add({**sample, "advantage": 1.0, "group_id": 0})
    tensors: dict[str, torch.Tensor] = row.pack()
    return tensors


def packed_logits(model: PreTrainedModel, row: dict[str, torch.Tensor]) -> torch.Tensor:
    longest_q, longest_k = row["tree_max_seqlens"].tolist()
    output = model(
        input_ids=row["input_ids"][None],
        position_ids=row["position_ids"][None],
        tree_kv_index=row["tree_kv_index"],
        tree_cu_seqlens_q=row["tree_cu_seqlens_q"],
        tree_cu_seqlens_k=row["tree_cu_seqlens_k"],
        tree_max_seqlen_q=longest_q,
        tree_max_seqlen_k=longest_k,
    )
    logits: torch.Tensor = output.logits[0]
    return logits


def compare(plain: PreTrainedModel, tree: PreTrainedModel) -> None:
    """Logits of every token, and the gradient of the sum of the log-probabilities that GRPO takes from them."""
    sequences = samples()
    row = packed(sequences)
    assert len(row["input_ids"]) < sum(map(len, sequences)), "nothing is shared, so this shows nothing"
    logits = packed_logits(tree, row)
    wanted_total, found_total = torch.zeros(()), torch.zeros(())
    for i, ids in enumerate(sequences):
        wanted = plain(ids[None]).logits[0, :-1]
        found = logits[row["token_index"][row["segment_id"] == i]]
        assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        targets = ids[1:, None]
        wanted_total = wanted_total + wanted.log_softmax(-1).gather(1, targets).sum()
        found_total = found_total + found.log_softmax(-1).gather(1, targets).sum()
    wanted_total.backward()
    found_total.backward()
    gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in tree.named_parameters():
        assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-3)


def test_the_tiny_policy_computes_the_same_packed_as_plain() -> None:
    plain, tree = (
        AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32, **options)
        for options in ({"attn_implementation": "eager"}, {"attn_implementation": TREE_ATTENTION})
    )
    assert plain.config.num_key_value_heads < plain.config.num_attention_heads, "the tiny policy has grouped queries"
    compare(plain, tree)


def test_layers_with_a_sliding_window_compute_the_same_packed_as_plain() -> None:
    transformers.set_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=1,
    )
    assert config.layer_types == ["full_attention", "sliding_attention"]
    plain = Qwen3ForCausalLM._from_config(config, attn_implementation="eager")
    tree = Qwen3ForCausalLM._from_config(deepcopy(config), attn_implementation=TREE_ATTENTION)
    tree.load_state_dict(plain.state_dict())
    compare(plain, tree)


Segments = tuple[list[int], list[int]]
LENGTHS: Segments = ([3, 1, 5, 2], [3, 6, 5, 9])


def naive(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Segments, scale: float, window: int
) -> torch.Tensor:
    """One query, one head at a time."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    start_q = start_k = 0
    for queries, keys in zip(*lengths, strict=True):
        for i in range(queries):
            own = keys - queries + i
            first = max(0, own - window) if window >= 0 else 0
            seen = slice(start_k + first, start_k + own + 1)
            for head in range(heads):
                scores = (k[seen, head // group] @ q[start_q + i, head]) * scale
                out[start_q + i, head] = scores.softmax(0) @ v[seen, head // group]
        start_q, start_k = start_q + queries, start_k + keys
    return out


def boundaries(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


def random_inputs(kv_heads: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    shapes = [(sum(LENGTHS[0]), 4, 8), (sum(LENGTHS[1]), kv_heads, 8), (sum(LENGTHS[1]), kv_heads, 8)]
    return [torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("window", [-1, 0, 1, 3, 100])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_segments_attend_as_written_out_by_hand(kv_heads: int, window: int) -> None:
    q, k, v = random_inputs(kv_heads)
    scale = 0.3
    lengths = (boundaries(LENGTHS[0]), boundaries(LENGTHS[1]), max(LENGTHS[0]), max(LENGTHS[1]))
    found = flash_attn_varlen_func(q, k, v, *lengths, softmax_scale=scale, window_size=(window, 0))
    wanted = naive(q, k, v, LENGTHS, scale, window)
    assert_close(found, wanted)
    assert_close(torch.autograd.grad(found.sin().sum(), [q, k, v]), torch.autograd.grad(wanted.sin().sum(), [q, k, v]))


def test_the_scale_is_that_of_the_head_dimension_unless_told() -> None:
    q, k, v = random_inputs(2)
    lengths = (boundaries(LENGTHS[0]), boundaries(LENGTHS[1]), max(LENGTHS[0]), max(LENGTHS[1]))
    assert_close(flash_attn_varlen_func(q, k, v, *lengths), naive(q, k, v, LENGTHS, 8**-0.5, -1))


@pytest.mark.parametrize("options", [{"softcap": 30.0}, {"causal": False}])
def test_what_cannot_be_computed_is_refused(options: Any) -> None:
    q, k, v = random_inputs(2)
    lengths = (boundaries(LENGTHS[0]), boundaries(LENGTHS[1]), max(LENGTHS[0]), max(LENGTHS[1]))
    with pytest.raises(ValueError, match="is not supported here; use causal, no cap"):
        flash_attn_varlen_func(q, k, v, *lengths, **options)
