"""Attention of a chunk to what came before it and to itself, for queries at some of its positions.

    o = (e^{l_1} o_1 + e^{l_2} o_2) / (e^{l_1} + e^{l_2}),    l_i = log sum_s exp(q . k_s / sqrt(d)) over part i

The earlier part needs no mask, the chunk itself only the causal one, so both run in kernels that hold no scores.

Shapes: `B` sequences, `H` heads of `d` channels, `T` tokens in the chunk, `S` before it, `M` queries at most in one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import HALF


def attend_with_mass(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention `(B, H, M, d)` and the logarithm of its denominators `(B, H, M)`, in float32 at least, no gradient.

    `causal`: query i sees keys 0 to i.
    """
    if q.is_cuda and q.dtype in HALF and q.shape[-1] % 8 == 0:
        found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)
        return found[0], found[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(wide) @ k.to(wide).transpose(-1, -2)) * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v.to(wide)).to(q.dtype), scores.logsumexp(-1)


def join(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Attention over both parts, `(..., d)`, from `(o (..., d), l (...))` of each."""
    (one, mass_one), (two, mass_two) = first, second
    share = torch.sigmoid(mass_one - mass_two)[..., None]
    return (share * one + (1 - share) * two).to(one.dtype)


@torch.no_grad()
def attend_chunk(
    q: Tensor, row: Tensor, place: Tensor, slot: Tensor, keys: Tensor, values: Tensor, length: int
) -> Tensor:
    """Attention outputs `(n, H, d)` of `n` queries `q (n, H, d)` of a chunk of `length` tokens.

    Query i is that of sequence `row[i]` at position `place[i]` in the chunk, and the `slot[i]`-th of its sequence.
    `keys`, `values` `(B, H, S + T, d)`, the chunk's own last.
    """
    batch, before = keys.shape[0], keys.shape[2] - length
    spread = q.new_zeros(batch, length, *q.shape[1:])
    spread[row, place] = q
    o, mass = attend_with_mass(spread.transpose(1, 2), keys[:, :, before:], values[:, :, before:], causal=True)
    own = o.transpose(1, 2)[row, place], mass.transpose(1, 2)[row, place]
    if not before or not len(row):
        return own[0]
    packed = q.new_zeros(batch, int(slot.max()) + 1, *q.shape[1:])
    packed[row, slot] = q
    o, mass = attend_with_mass(packed.transpose(1, 2), keys[:, :, :before], values[:, :, :before], causal=False)
    return join(own, (o.transpose(1, 2)[row, slot], mass.transpose(1, 2)[row, slot]))
