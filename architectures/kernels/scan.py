"""The diagonal linear recurrence `h_t = a_t h_{t-1} + b_t`, channel by channel.

Shapes: `a` broadcasts to `b (B, T, C)`; `initial (B, C)` is `h_0`, zero when absent; all forms return
`(h (B, T, C), h_T (B, C))`. `a` may be zero and may exceed one: nothing is divided and no logarithm is taken.

Reference: Martin & Cundy 2018, "Parallelizing linear recurrent neural nets over sequence length".
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def plain(b: Tensor, a: Tensor, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The definition, one step after the other."""
    a = a.expand_as(b)
    h = torch.zeros_like(b[:, 0]) if initial is None else initial.to(b.dtype)
    states = []
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, dim=1), h


def chunked(b: Tensor, a: Tensor, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """About `2 sqrt(T)` sequential steps: all chunks advance together, then their ends are chained."""
    h = _Scan.apply(a.expand_as(b), b, torch.zeros_like(b[:, 0]) if initial is None else initial.to(b.dtype))
    return h, h[:, -1]


class _Scan(torch.autograd.Function):
    """The adjoint of a linear recurrence is the same recurrence backwards, so its memory is one tensor, not T."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
        h = _blocked(a, b, initial)
        ctx.save_for_backward(a, h, initial)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        a, h, initial = ctx.saved_tensors
        following = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], dim=1)
        adjoint = _blocked(following.flip(1), grads[0].flip(1), torch.zeros_like(initial)).flip(1)
        grad_a = None
        if ctx.needs_input_grad[0]:
            grad_a = adjoint * torch.cat([initial[:, None], h[:, :-1]], dim=1)
        return grad_a, adjoint, a[:, 0] * adjoint[:, 0]


def _blocked(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
    batch, length, channels = b.shape
    size = max(1, math.isqrt(length))
    count = -(-length // size)
    padded = count * size
    if padded > length:
        pad = (0, 0, 0, padded - length)
        a, b = torch.nn.functional.pad(a, pad), torch.nn.functional.pad(b, pad)
    a = a.reshape(batch, count, size, channels)
    b = b.reshape(batch, count, size, channels)
    h = torch.empty_like(b)
    reach = torch.empty_like(b)
    h[:, :, 0] = b[:, :, 0]
    reach[:, :, 0] = a[:, :, 0]
    for t in range(1, size):
        torch.addcmul(b[:, :, t], a[:, :, t], h[:, :, t - 1], out=h[:, :, t])
        torch.mul(a[:, :, t], reach[:, :, t - 1], out=reach[:, :, t])
    starts = torch.empty_like(h[:, :, 0])
    starts[:, 0] = initial
    for n in range(1, count):
        torch.addcmul(h[:, n - 1, -1], reach[:, n - 1, -1], starts[:, n - 1], out=starts[:, n])
    h.addcmul_(reach, starts[:, :, None])
    return h.reshape(batch, padded, channels)[:, :length]
