"""Attention over packed segments of different lengths, in place of FlashAttention-3: plain PyTorch on any device.

Semantics are flash attention's: segment i of the queries attends to segment i of the keys, causally, the last query
seeing the last key. On CUDA devices this is `torch.nn.attention.varlen`, elsewhere SDPA segment by segment.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

Window = tuple[int, int]
_FLASH_DTYPES = (torch.float16, torch.bfloat16)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
) -> torch.Tensor:
    """Queries [T_q, heads, d], keys and values [T_k, kv heads, d], boundaries int [segments + 1] -> [T_q, heads, d].

    Raises ValueError for what the replacements cannot compute: attention that is not causal, or with a soft cap.
    """
    if softcap or not causal:
        raise ValueError(
            f"attention with softcap={softcap}, causal={causal} is not supported here; use causal, no cap"
        )
    if q.is_cuda and q.dtype in _FLASH_DTYPES:
        window = (window_size[0], 0)
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        out = varlen_attn(q, k, v, *lengths, scale=softmax_scale, window_size=window, enable_gqa=True)
        assert isinstance(out, torch.Tensor)  # a pair only when asked for more
        return out
    return _sdpa_by_segment(q, k, v, cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), softmax_scale, window_size[0])


def _sdpa_by_segment(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bounds_q: list[int],
    bounds_k: list[int],
    scale: float | None,
    window: int,
) -> torch.Tensor:
    parts = []
    for i in range(len(bounds_q) - 1):
        query, key, value = (
            x[bounds[i] : bounds[i + 1]].transpose(0, 1).unsqueeze(0)
            for x, bounds in ((q, bounds_q), (k, bounds_k), (v, bounds_k))
        )
        mask = _causal_mask(query.shape[2], key.shape[2], window, q.device)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


def _causal_mask(queries: int, keys: int, window: int, device: torch.device) -> torch.Tensor:
    """True where a query may look: up to its own key, the last query's being the last, and `window` keys back."""
    last = torch.arange(keys - queries, keys, device=device).unsqueeze(1)
    place = torch.arange(keys, device=device).unsqueeze(0)
    mask = place <= last
    return mask & (place >= last - window) if window >= 0 else mask
