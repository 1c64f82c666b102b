"""Kimi delta attention: the delta rule with one decay per key channel.

    S_t = (I - beta_t k_t k_t^T) diag(exp(g_t)) S_{t-1} + beta_t k_t v_t^T,        o_t = S_t^T q_t

Shapes: `q, k, g (B, T, H, K)`, `v (B, T, H, V)`, `beta (B, T, H)`, `g` at most 0; `initial (B, H, K, V)` before the
first token, zero when absent. Returned: `o (B, T, H, V)`, final state `(B, H, K, V)`. Queries come scaled and keys
normalised.

Reference: Kimi Team 2025, arXiv 2510.26692.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .channel_decay import decayed_scores
from .chunks import cumulative, join, split, unit_lower_inverse


def plain(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, one token after the other."""
    batch, length, heads, d_k = k.shape
    state = v.new_zeros(batch, heads, d_k, v.shape[-1]) if initial is None else initial.to(v.dtype)
    outputs = []
    for t in range(length):
        state = g[:, t, :, :, None].exp() * state
        read = k[:, t, :, None, :] @ state  # (B, H, 1, V)
        change = beta[:, t, :, None, None] * (v[:, t, :, None, :] - read)
        state = state + k[:, t, :, :, None] * change
        outputs.append((q[:, t, :, None, :] @ state)[:, :, 0])
    return torch.stack(outputs, dim=1), state


def chunked(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, initial: Tensor | None = None, *, chunk: int = 16
) -> tuple[Tensor, Tensor]:
    """The WY form of the gated delta rule with decays inside the products of keys."""
    batch, length, heads, d_k = k.shape
    q_c, k_c, v_c, g_c = (split(x.transpose(1, 2), chunk) for x in (q, k, v, g))  # (B, H, n, L, .)
    beta_c = split(beta.transpose(1, 2)[..., None], chunk)  # (B, H, n, L, 1)
    scores = decayed_scores(torch.stack([q_c, k_c * beta_c], dim=-3), k_c, g_c)
    inverse = unit_lower_inverse(scores[..., 1, :, :].tril(-1))
    inside, after = (x.transpose(-1, -2) for x in cumulative(g_c.transpose(-1, -2)))
    # u = own - reads @ S, with S the state at the start of the chunk
    solved = inverse @ torch.cat([v_c * beta_c, k_c * beta_c * inside], dim=-1)
    own, reads = solved.split([v.shape[-1], d_k], dim=-1)
    out_keys = (k_c * after).transpose(-1, -2)
    whole = inside[..., -1, :, None]
    state = v.new_zeros(batch, heads, d_k, v.shape[-1]) if initial is None else initial.to(v.dtype)
    changes, states = [], []
    for own_n, reads_n, keys_n, decay in zip(*(x.unbind(2) for x in (own, reads, out_keys, whole)), strict=True):
        states.append(state)
        u = own_n - reads_n @ state
        changes.append(u)
        state = decay * state + keys_n @ u
    o = scores[..., 0, :, :] @ torch.stack(changes, dim=2) + (q_c * inside) @ torch.stack(states, dim=2)
    return join(o, length).transpose(1, 2), state
