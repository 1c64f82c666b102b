"""Gated linear attention: a matrix memory with one decay per key channel.

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,        o_t = S_t^T q_t

Shapes: `q, k, g (B, T, H, K)`, `v (B, T, H, V)`, `g` at most 0; `initial (B, H, K, V)` before the first token, zero
when absent. Returned: `o (B, T, H, V)`, final state `(B, H, K, V)`. Queries come scaled.

Reference: Yang et al. 2024, arXiv 2312.06635.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .channel_decay import decayed_scores
from .chunks import cumulative, join, split


def plain(q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The definition, one token after the other."""
    batch, length, heads, d_k = k.shape
    state = v.new_zeros(batch, heads, d_k, v.shape[-1]) if initial is None else initial.to(v.dtype)
    outputs = []
    for t in range(length):
        state = g[:, t, :, :, None].exp() * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, None, :] @ state)[:, :, 0])
    return torch.stack(outputs, dim=1), state


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial: Tensor | None = None, *, chunk: int = 32
) -> tuple[Tensor, Tensor]:
    """Attention-like products inside chunks of `chunk` tokens, the state passed between them."""
    batch, length, heads, d_k = k.shape
    q_c, k_c, v_c, g_c = (split(x.transpose(1, 2), chunk) for x in (q, k, v, g))  # (B, H, n, L, .)
    scores = decayed_scores(q_c[..., None, :, :], k_c, g_c)[..., 0, :, :]
    inside, after = cumulative(g_c.transpose(-1, -2))
    q_in = q_c * inside.transpose(-1, -2)
    writes = (k_c * after.transpose(-1, -2)).transpose(-1, -2) @ v_c  # (B, H, n, K, V)
    state = v.new_zeros(batch, heads, d_k, v.shape[-1]) if initial is None else initial.to(v.dtype)
    states = []
    for write, decay in zip(writes.unbind(2), inside[..., -1:].unbind(2), strict=True):
        states.append(state)
        state = torch.addcmul(write, decay, state)
    o = scores @ v_c + q_in @ torch.stack(states, dim=2)
    return join(o, length).transpose(1, 2), state
