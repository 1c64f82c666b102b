"""The gated delta rule: before a value is written, what its key would read is taken away.

    S_t = exp(g_t) S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,        o_t = S_t q_t

Shapes: `q, k (B, T, H, K)`, `v (B, T, H, V)`, `beta (B, T, H)`, `g (B, T, H)` log decays, at most 0, or None for the
delta rule without decay; `initial (B, H, K, V)`, the transpose of S before the first token, zero when absent.
Returned: `o (B, T, H, V)`, final state `(B, H, K, V)`. Queries come scaled and keys normalised.

Reference: Yang et al. 2024, arXiv 2406.06484 (chunked form); Yang, Kautz & Hatamizadeh 2025, arXiv 2412.06464.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .chunks import cumulative, decay_matrix, join, split, unit_lower_inverse


def plain(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None = None, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, one token after the other."""
    batch, length, heads, d_k = k.shape
    state = v.new_zeros(batch, heads, d_k, v.shape[-1]) if initial is None else initial.to(v.dtype)
    outputs = []
    for t in range(length):
        if g is not None:
            state = g[:, t, :, None, None].exp() * state
        read = k[:, t, :, None, :] @ state  # (B, H, 1, V)
        change = beta[:, t, :, None, None] * (v[:, t, :, None, :] - read)
        state = state + k[:, t, :, :, None] * change
        outputs.append((q[:, t, :, None, :] @ state)[:, :, 0])
    return torch.stack(outputs, dim=1), state


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    initial: Tensor | None = None,
    *,
    chunk: int = 32,
) -> tuple[Tensor, Tensor]:
    """The WY form. Inside a chunk the changes u_t = beta_t (v_t - what k_t reads) solve a unit lower triangular
    system, inverted once; between chunks the state is passed."""
    batch, length, heads, d_k = k.shape
    q_c, k_c, v_c = (split(x.transpose(1, 2), chunk) for x in (q, k, v))  # (B, H, n, L, .)
    beta_c = split(beta.transpose(1, 2)[..., None], chunk)  # (B, H, n, L, 1)
    k_beta = k_c * beta_c
    keys = k_c.transpose(-1, -2)
    system, scores = k_beta @ keys, q_c @ keys
    k_in, q_in, k_out, whole = k_beta, q_c, k_c, None
    if g is None:
        system, scores = system.tril(-1), scores.tril()
    else:
        g_c = split(g.transpose(1, 2)[..., None], chunk)[..., 0]  # (B, H, n, L)
        decay = decay_matrix(g_c)
        system, scores = (system * decay).tril(-1), scores * decay
        inside, after = (x[..., None] for x in cumulative(g_c))
        k_in, q_in = k_beta * inside, q_c * inside
        k_out = k_c * after
        whole = inside[..., -1:, :]
    inverse = unit_lower_inverse(system)
    # u = own - reads @ S, with S the state at the start of the chunk
    solved = inverse @ torch.cat([v_c * beta_c, k_in], dim=-1)
    own, reads = solved.split([v.shape[-1], d_k], dim=-1)
    state = v.new_zeros(batch, heads, d_k, v.shape[-1]) if initial is None else initial.to(v.dtype)
    out_keys = k_out.transpose(-1, -2)
    changes, states = [], []
    fading = [None] * k_c.shape[2] if whole is None else whole.unbind(2)
    for own_n, reads_n, keys_n, fade in zip(own.unbind(2), reads.unbind(2), out_keys.unbind(2), fading, strict=True):
        states.append(state)
        u = own_n - reads_n @ state
        changes.append(u)
        state = (state if fade is None else fade * state) + keys_n @ u
    o = scores @ torch.stack(changes, dim=2) + q_in @ torch.stack(states, dim=2)
    return join(o, length).transpose(1, 2), state
