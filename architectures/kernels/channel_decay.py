"""Scores between queries and keys that have decayed channel by channel, for GLA and KDA.

    S^r_ij = sum_c x^r_ic k_jc exp(g_{j+1,c} + ... + g_ic)        for j <= i, else 0

Shapes: `x (..., R, L, K)` with R sets of rows, `k, g (..., L, K)`, L a power of two; returned `(..., R, L, L)`.

Blocks of at most `BASE` on the diagonal are computed pair by pair. A block of twice the size is joined from two: in
its lower left quarter the decay from j to i is that from j to the edge between the two times that from the edge to i,
so the quarter is one matrix product. Decays are products of exp(g), never quotients: nothing overflows or loses digits,
however strong the decay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BASE = 4


def decayed_scores(x: Tensor, k: Tensor, g: Tensor) -> Tensor:
    """The scores above."""
    return _DecayedScores.apply(x, k, g)


class _DecayedScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor, g: Tensor) -> Tensor:
        size = min(BASE, k.shape[-2])
        near, edges = _decays(g.exp(), size)
        scores = x.new_zeros(*x.shape[:-1], k.shape[-2])
        rows = x.unflatten(-2, (-1, size))  # (..., R, n, i, K)
        columns = near * k.unflatten(-2, (-1, size))[..., None, :, :]  # (..., n, i, j, K)
        _diagonal_blocks(scores, size).copy_((rows[..., None, :] @ columns[..., None, :, :, :, :].mT)[..., 0, :])
        for to_row, from_column in edges:
            quarter, late, early = _quarter(scores, x, k, size)
            quarter.copy_((late * to_row[..., None, :, :, :]) @ (early * from_column)[..., None, :, :, :].mT)
            size *= 2
        ctx.save_for_backward(x, k, near, *(decay for pair in edges for decay in pair))
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, k, near, *edges = ctx.saved_tensors
        grad, size = grads[0], near.shape[-2]
        rows, blocks = x.unflatten(-2, (-1, size)), _diagonal_blocks(grad, size).tril(-1)  # (..., R, n, i, .)
        columns = near * k.unflatten(-2, (-1, size))[..., None, :, :]
        grad_x = (blocks[..., None, :] @ columns[..., None, :, :, :, :])[..., 0, :].flatten(-3, -2)
        pulled = blocks[..., 0, :, :, :, None] * rows[..., 0, :, :, None, :]  # (..., n, i, j, K)
        for r in range(1, x.shape[-3]):
            pulled.addcmul_(blocks[..., r, :, :, :, None], rows[..., r, :, :, None, :])
        grad_k = pulled.mul_(near).sum(-3).flatten(-3, -2)
        for to_row, from_column in zip(edges[::2], edges[1::2], strict=True):
            quarter, late, early = _quarter(grad, x, k, size)
            grad_late, grad_early = _half(grad_x, size, 1), _half(grad_k, size, 0)
            grad_late += (quarter @ (early * from_column)[..., None, :, :, :]) * to_row[..., None, :, :, :]
            grad_early += (quarter.mT @ (late * to_row[..., None, :, :, :])).sum(-4) * from_column
            size *= 2
        # d/dG_i of each term is the term itself, and its opposite for d/dG_j; on the diagonal they cancel.
        grad_total = ((x * grad_x).sum(-3) - k * grad_k).double()
        grad_g = grad_total.flip(-2).cumsum(-2).flip(-2).to(k.dtype)
        on_diagonal = grad.diagonal(dim1=-2, dim2=-1)[..., None]  # (..., R, L, 1)
        return grad_x + on_diagonal * k[..., None, :, :], grad_k + (on_diagonal * x).sum(-3), grad_g


def _decays(a: Tensor, size: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """From the decay of each token `a (..., L, K)`: those inside blocks of `size`, `(..., n, i, j, K)`, and for each
    doubling of the blocks those from the edge to the rows and from the columns to the edge, `(..., p, s, K)`."""
    a = a.unflatten(-2, (-1, size))
    near = a.new_zeros(*a.shape[:-2], size, size, a.shape[-1])
    near[..., range(size), range(size), :] = 1
    for i in range(1, size):
        near[..., i, :i, :] = a[..., i, None, :] * near[..., i - 1, :i, :]
    from_start, to_end = near[..., :, 0, :] * a[..., :1, :], near[..., -1, :, :]
    edges = []
    while from_start.shape[-3] > 1:
        (first, second), (first_end, second_end) = (y.unflatten(-3, (-1, 2)).unbind(-3) for y in (from_start, to_end))
        edges.append((second, first_end))
        from_start = torch.cat([first, second * first[..., -1:, :]], dim=-2)
        to_end = torch.cat([first_end * second[..., -1:, :], second_end], dim=-2)
    return near, edges


def _quarter(square: Tensor, x: Tensor, k: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of the diagonal blocks of twice `size`: the lower left quarters, their rows of x and columns of k, as views."""
    return _diagonal_blocks(square, 2 * size)[..., size:, :size], _half(x, size, 1), _half(k, size, 0)


def _half(x: Tensor, size: int, which: int) -> Tensor:
    """The first (0) or second (1) half of each block of twice `size`: `(..., L, K)` to a view `(..., p, size, K)`."""
    return x.unflatten(-2, (-1, 2, size))[..., which, :, :]


def _diagonal_blocks(square: Tensor, size: int) -> Tensor:
    """The diagonal blocks of `(..., L, L)` as a view `(..., n, size, size)`."""
    blocks = square.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
