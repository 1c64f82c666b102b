"""What the chunked forms share: cutting time into chunks, decays inside a chunk, unit lower triangular inverses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def split(x: Tensor, size: int) -> Tensor:
    """`(..., T, D)` as `(..., n, L, D)` with zeros after the end; L is `size`, or the padded length if that is less."""
    length = x.shape[-2]
    size = min(size, max(1, 1 << (length - 1).bit_length()))
    count = -(-length // size)
    if count * size > length:
        x = F.pad(x, (0, 0, 0, count * size - length))
    return x.unflatten(-2, (count, size))


def join(x: Tensor, length: int) -> Tensor:
    """The inverse of `split`: `(..., n, L, D)` as `(..., length, D)`."""
    return x.flatten(-3, -2)[..., :length, :]


class _DecayMatrix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor) -> Tensor:
        total = g.double().cumsum(-1)
        upper = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).triu(1)
        difference = (total[..., :, None] - total[..., None, :]).to(g.dtype)
        decay = difference.masked_fill_(upper, -torch.inf).exp_()
        ctx.save_for_backward(decay)
        return decay

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (decay,) = ctx.saved_tensors
        below = grads[0] * decay
        below.diagonal(dim1=-2, dim2=-1).zero_()
        # The gradient of g_k is the sum over j < k <= i. Terms that cancel between rows and columns do so exactly.
        rows, columns = (below.sum(dim, dtype=torch.float64) for dim in (-1, -2))
        return (rows - columns).flip(-1).cumsum(-1).flip(-1).to(decay.dtype)


def decay_matrix(g: Tensor) -> Tensor:
    """`exp(g_{j+1} + ... + g_i)` for j <= i, else 0: log decays `(..., L)` to `(..., L, L)`.

    Sums are differences of float64 cumulative ones and masked before the exponential: nothing overflows, and a weak
    decay after a strong one keeps its digits.
    """
    return _DecayMatrix.apply(g)


def cumulative(g: Tensor) -> tuple[Tensor, Tensor]:
    """Decay from the start of a chunk up to and with each token, and from after each token to the chunk's end.

    Log decays `(..., L)` to two tensors `(..., L)`.
    """
    total = g.double().cumsum(-1)
    return total.to(g.dtype).exp(), (total[..., -1:] - total).to(g.dtype).exp()


class _UnitLowerInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        inverse = _invert(a)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return (transposed @ grads[0] @ transposed).neg_().tril_(-1)


def unit_lower_inverse(a: Tensor) -> Tensor:
    """`(I + A)^{-1}` for strictly lower triangular `A (..., L, L)`, L a power of two.

    Halves are inverted and joined, which keeps the accuracy of forward substitution; powers of A would not.
    """
    return _UnitLowerInverse.apply(a)


def _invert(a: Tensor) -> Tensor:
    size = a.shape[-1]
    inverse = torch.eye(size, dtype=a.dtype, device=a.device).expand(a.shape).clone()
    half = 1
    while half < size:
        # Blocks [[P, 0], [R, Q]] of twice `half`: the lower left of the inverse is -Q^{-1} R P^{-1}.
        blocks = _diagonal_blocks(a, 2 * half)
        solved = _diagonal_blocks(inverse, 2 * half)
        top, bottom = solved[..., :half, :half], solved[..., half:, half:]
        solved[..., half:, :half] = -(bottom @ blocks[..., half:, :half] @ top)
        half *= 2
    return inverse


def _diagonal_blocks(a: Tensor, size: int) -> Tensor:
    """The diagonal blocks of `a (..., L, L)` as a view `(..., L / size, size, size)`."""
    count = a.shape[-1] // size
    blocks = a.unflatten(-1, (count, size)).unflatten(-3, (count, size))
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
