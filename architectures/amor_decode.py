"""One decoding step of gated attention for a batch, the skip decided where the tensors are.

    y_b = W_O softmax(RoPE(W_Q x_b) K_b / sqrt(d)) V_b   where fire_b, else 0

`masked` computes every row and is the definition. `gather` computes the firing rows only; on a CPU looking at the gate
costs nothing. On a GPU that would be a round trip to the host in every block, so `amor_decode_triton.kernel` launches
the same programs whatever the gates say, and each stops at once where its row is shut; without Triton, `masked` runs.

Shapes: `B` sequences, `D` channels, `S` tokens seen, `H` heads of `d`.

Reference: Zheng & Shani, AMOR, arXiv 2602.13215, section 3.5.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import rotate

Angles = tuple[Tensor, Tensor]


class Cached(NamedTuple):
    """Caches `(B, H, room, d)` of rotated keys and values, of which the first `length` are filled."""

    keys: Tensor
    values: Tensor
    length: int


def decode(
    query: nn.Linear, out: nn.Linear, x: Tensor, fire: Tensor, cached: Cached, angles: Angles | None
) -> tuple[Tensor, bool]:
    """The attended rows `(B, D)` of `x (B, D)`, zero where `fire (B,)` is false, and whether those were skipped.

    `angles`: cosines and sines `(1, d / 2)` of the token's position, None without rotation.
    """
    if x.device.type == "cpu":
        return gather(query, out, x, fire, cached, angles), True
    if x.is_cuda and not torch.is_grad_enabled() and not torch.is_autocast_enabled() and _has_triton():
        from .amor_decode_triton import kernel, usable

        if usable(query.weight, cached):
            return kernel(query.weight, out.weight, x, fire, cached, angles), True
    return masked(query, out, x, fire, cached, angles), False


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def masked(query: nn.Linear, out: nn.Linear, x: Tensor, fire: Tensor, cached: Cached, angles: Angles | None) -> Tensor:
    """Every row, then zeros where the gate is shut."""
    heads, head_dim = cached.keys.shape[1], cached.keys.shape[3]
    q = query(x).unflatten(-1, (heads, 1, head_dim))
    if angles is not None:
        q = rotate(q, *angles)
    keys, values = (part[:, :, : cached.length].to(q.dtype) for part in cached[:2])
    attended = out(F.scaled_dot_product_attention(q, keys, values).flatten(1))
    return torch.where(fire[:, None], attended, torch.zeros_like(attended))


def gather(query: nn.Linear, out: nn.Linear, x: Tensor, fire: Tensor, cached: Cached, angles: Angles | None) -> Tensor:
    """The rows that fire; the cache is copied for them only where some do not."""
    rows = fire.nonzero()[:, 0]
    if not len(rows):
        return torch.zeros_like(x)
    if len(rows) == len(x):
        return masked(query, out, x, fire, cached, angles)
    keys, values = (part[rows, :, : cached.length] for part in cached[:2])
    attended = masked(query, out, x[rows], fire[rows], Cached(keys, values, cached.length), angles)
    return attended.new_zeros(len(x), attended.shape[-1]).index_copy(0, rows, attended)
