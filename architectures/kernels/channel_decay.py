"""Scores between queries and keys that have decayed channel by channel, for GLA and KDA.

    S^r_ij = sum_c x^r_ic k_jc exp(g_{j+1,c} + ... + g_ic)        for j <= i, else 0

Shapes: `x (..., R, L, K)` with R sets of rows, `k, g (..., L, K)`; returned `(..., R, L, L)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

BASE = 4
"""Blocks on the diagonal of at most this size are computed pair by pair."""


class _Pairwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor, g: Tensor) -> Tensor:
        total = g.double().cumsum(-2)
        upper = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool, device=g.device).triu(1)
        difference = (total[..., :, None, :] - total[..., None, :, :]).to(g.dtype)
        decay = difference.masked_fill_(upper[..., None], -torch.inf).exp_()  # (..., i, j, c)
        ctx.save_for_backward(x, k, decay)
        rows = x.movedim(-3, -2)  # (..., i, r, c)
        return (rows @ (decay * k[..., None, :, :]).transpose(-1, -2)).movedim(-2, -3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, k, decay = ctx.saved_tensors
        on_diagonal = grads[0].diagonal(dim1=-2, dim2=-1)[..., None]  # (..., r, i, 1)
        below = grads[0].tril(-1)
        rows, columns = below.movedim(-3, -2), x.movedim(-3, -2)  # (..., i, r, j), (..., i, r, c)
        grad_x = (rows @ (decay * k[..., None, :, :])).movedim(-2, -3)
        grad_k = (rows.transpose(-1, -2) @ columns).mul_(decay).sum(-3)
        # d/dG_i of each term is the term itself, and its opposite for d/dG_j; on the diagonal they cancel.
        grad_total = ((x * grad_x).sum(-3) - k * grad_k).double()
        grad_g = grad_total.flip(-2).cumsum(-2).flip(-2).to(k.dtype)
        return grad_x + on_diagonal * k[..., None, :, :], grad_k + (on_diagonal * x).sum(-3), grad_g


def decayed_scores(x: Tensor, k: Tensor, g: Tensor) -> Tensor:
    """The scores above, for L a power of two.

    Blocks of twice the size are joined from two: in the lower left one, the decay from j to i is that from j to the
    edge between the two times that from the edge to i, so the block is one matrix product. No exponent is ever
    positive: nothing overflows, however strong the decay, and L log L rather than L^2 decays are computed.
    """
    size = min(BASE, k.shape[-2])
    total = g.double().cumsum(-2)
    x_b, k_b, g_b = (y.unflatten(-2, (-1, size)) for y in (x, k, g))
    scores = _Pairwise.apply(x_b.transpose(-3, -4), k_b, g_b)  # (..., n, R, size, size)
    while size < k.shape[-2]:
        x_p, k_p, total_p = (y.unflatten(-2, (-1, 2, size)) for y in (x, k, total))
        edge = total_p[..., 0, -1:, :]
        rows = x_p[..., 1, :, :] * (total_p[..., 1, :, :] - edge).to(k.dtype).exp()[..., None, :, :, :]
        columns = k_p[..., 0, :, :] * (edge - total_p[..., 0, :, :]).to(k.dtype).exp()
        corner = rows.transpose(-3, -4) @ columns.transpose(-1, -2)[..., None, :, :]
        first, second = scores.unflatten(-4, (-1, 2)).unbind(-4)
        scores = torch.cat([F.pad(first, (0, size)), torch.cat([corner, second], dim=-1)], dim=-2)
        size *= 2
    return scores[..., 0, :, :, :]
