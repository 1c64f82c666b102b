"""State space duality (Mamba-2): a linear recurrence with one decay per head, shared keys and queries.

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T,        y_t = S_t C_t

Shapes: `x (B, T, H, P)`, `dt (B, T, H)` step sizes, at least 0, `a (H,)` at most 0, `b, c (B, T, N)` shared by all
heads or `(B, T, H, N)` one for each; `initial (B, H, P, N)` the state before the first token, zero when absent.
Returned: `y (B, T, H, P)`, final state `(B, H, P, N)`.

Reference: Dao & Gu 2024, arXiv 2405.21060, section 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .chunks import cumulative, decay_matrix, join, split


def plain(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, one token after the other."""
    batch, length, heads, width = x.shape
    b, c = _per_head(b), _per_head(c)
    state = x.new_zeros(batch, heads, width, b.shape[-1]) if initial is None else initial.to(x.dtype)
    outputs = []
    for t in range(length):
        write = (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None, :]
        state = (dt[:, t] * a).exp()[..., None, None] * state + write
        outputs.append((state @ c[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, dim=1), state


def chunked(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, initial: Tensor | None = None, *, chunk: int = 32
) -> tuple[Tensor, Tensor]:
    """Attention-like products inside chunks of `chunk` tokens, the state passed between them."""
    batch, length, heads, width = x.shape
    d_state = b.shape[-1]
    x_c = split((x * dt[..., None]).transpose(1, 2), chunk)  # (B, H, n, L, P)
    g_c = split((dt * a).transpose(1, 2)[..., None], chunk)[..., 0]  # (B, H, n, L)
    b_c, c_c = (split(_per_head(m).transpose(1, 2), chunk) for m in (b, c))  # (B, H or 1, n, L, N)
    count = g_c.shape[2]

    scores = (c_c @ b_c.transpose(-1, -2)) * decay_matrix(g_c)  # (B, H, n, L, L)
    y = scores @ x_c
    inside, after = cumulative(g_c)
    writes = (x_c * after[..., None]).transpose(-1, -2) @ b_c  # (B, H, n, P, N)
    whole = inside[..., -1]
    state = x.new_zeros(batch, heads, width, d_state) if initial is None else initial.to(x.dtype)
    if count == 1 and initial is None:
        return join(y, length).transpose(1, 2), writes[:, :, 0]
    states = []
    for write, decay in zip(writes.unbind(2), whole[..., None, None].unbind(2), strict=True):
        states.append(state)
        state = torch.addcmul(write, decay, state)
    before = torch.stack(states, dim=2)  # (B, H, n, P, N)
    carried = c_c @ before.transpose(-1, -2)  # (B, H, n, L, P)
    y = torch.addcmul(y, inside[..., None], carried)
    return join(y, length).transpose(1, 2), state


def _per_head(x: Tensor) -> Tensor:
    """`(B, T, N)` as `(B, T, 1, N)`; what has heads already is left as it is."""
    return x[:, :, None] if x.ndim == 3 else x
