"""One decoding step's operations, written out: the definition that the kernels in `triton_ops` are held to.

All write into tensors that exist already, and none takes a position from the host: `position (1,)` int64 is where the
new token stands. Rounding is part of the definition: what the model's modules round to their dtype is rounded here.

Shapes: `B` sequences, one token each; `H` heads of `d` channels; `S` the cache's room.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..kernels import full


class Norm(NamedTuple):
    """An RMSNorm to be applied to an operation's input: weights `(K,)` and epsilon."""

    weight: Tensor
    eps: float


class Angles(NamedTuple):
    """Cosines and sines `(d / 2,)` of the new token's position."""

    cos: Tensor
    sin: Tensor


class Dial(NamedTuple):
    """A gate set from outside: `fires (B, S)` uint8, read at the new token's position."""

    fires: Tensor


def normalise(x: Tensor, norm: Norm | None, dtype: torch.dtype) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` in `dtype`; `x` itself without a norm."""
    if norm is None:
        return x.to(dtype)
    wide = full(x)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps) * norm.weight).to(dtype)


def project(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    norm: Norm | None = None,
    swiglu: bool = False,
    residual: bool = False,
    scale: Tensor | None = None,
    fire: Tensor | None = None,
) -> None:
    """`out (B, N) = W norm(x)` for `x (B, K)`, `W (N, K)`, products summed in float32 at least.

    `swiglu`: W has 2 N rows and `out = SiLU(y_1) y_2`. `residual`: the result is added to `out`, times `scale (N,)`.
    `fire (B,)` uint8: a row that is 0 is left as it is, and where all are, the weights are not read.
    """
    y = F.linear(full(normalise(x, norm, weight.dtype)), full(weight)).to(out.dtype)
    ending(y, out, swiglu=swiglu, residual=residual, scale=scale, fire=fire)


def ending(y: Tensor, out: Tensor, *, swiglu: bool, residual: bool, scale: Tensor | None, fire: Tensor | None) -> None:
    """What `project` does with its products `y`."""
    if swiglu:
        gate, value = y.chunk(2, dim=-1)
        y = F.silu(gate) * value
    if scale is not None:
        y = scale.to(y.dtype) * y
    if residual:
        y = out + y
    out.copy_(y if fire is None else torch.where(fire[:, None] > 0, y, out))


def normed(x: Tensor, norm: Norm, out: Tensor) -> None:
    """`out (B, K) = norm(x)`."""
    out.copy_(normalise(x, norm, out.dtype))


def entropy(x: Tensor, weight: Tensor, score: Tensor, *, norm: Norm | None = None) -> None:
    """`score (B,)` float32: the entropy of `softmax(W norm(x))` over `log V`, `W (V, K)`."""
    spread(F.linear(full(normalise(x, norm, weight.dtype)), full(weight)).to(weight.dtype), score)


def spread(logits: Tensor, score: Tensor) -> None:
    """What `entropy` does with its logits `(B, V)`."""
    probability = torch.softmax(full(logits), dim=-1)
    score.copy_(torch.special.entr(probability).sum(-1) / math.log(max(2, logits.shape[-1])))


def route(
    hidden: Tensor,
    x: Tensor,
    bias: Tensor,
    out: Tensor,
    skip: Tensor,
    skip_bias: Tensor,
    score: Tensor,
    *,
    norm: Norm | None,
) -> None:
    """`score (B,) = out . SiLU(hidden + bias) + skip . norm(x) + skip_bias`, with `hidden (B, r)` float32 at least."""
    bent = F.silu(hidden + full(bias)) @ full(out)
    score.copy_(bent + full(normalise(x, norm, x.dtype)) @ full(skip) + full(skip_bias))


def decide(
    score: Tensor | None, threshold: Tensor | None, fire: Tensor, count: Tensor, position: Tensor, *, dial: Dial | None
) -> None:
    """`fire (B,)` uint8 = `score > threshold`, or as the dial says; `count (B,)` int64 goes up by it."""
    if dial is not None:
        fire.copy_(dial.fires.index_select(1, position)[:, 0])
    elif score is not None and threshold is not None:
        fire.copy_(score > threshold)
    count.add_(fire)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, out: Tensor, position: Tensor, *, silu: bool
) -> None:
    """The short convolution `out (B, C)` of `x (B, C)` and the K - 1 inputs before it.

    `state (B, K, C)` is a ring: the input at position p is in slot p mod K. The new one takes the place of the one that
    no longer counts, so nothing is moved. `weight (C, 1, K)`, the last column for the new input.
    """
    width = state.shape[1]
    place = int(position)
    state[:, place % width] = x
    y = sum(
        full(weight[:, 0, width - 1 - lag]) * full(state[:, (place - lag) % width] if lag else x)
        for lag in range(width)
    )
    assert isinstance(y, Tensor)
    y = y if bias is None else y + full(bias)
    out.copy_(F.silu(y) if silu else y)


def turn(x: Tensor, angles: Angles | None) -> Tensor:
    """`x (..., d)` with its channel pairs `(i, i + d / 2)` rotated."""
    if angles is None:
        return x
    first, second = full(x).chunk(2, dim=-1)
    cos, sin = angles
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def unit(x: Tensor) -> Tensor:
    """`x / sqrt(|x|^2 + 1e-6)` over the last dimension."""
    wide = full(x)
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def ssd(
    u: Tensor,
    b: Tensor,
    c: Tensor,
    dt: Tensor,
    state: Tensor,
    out: Tensor,
    *,
    log_a: Tensor,
    dt_bias: Tensor,
    skip: Tensor | None,
    gate: Tensor | None,
    angles: Angles | None = None,
    read: bool = True,
) -> None:
    """`S <- exp(dt A) S + dt u b^T`, `out = (S c + D u) SiLU(gate)`; `dt = softplus(dt + dt_bias)`, `A = -exp(log_a)`.

    `u (B, H, P)`, `b`, `c` `(B, N)` or `(B, H, N)`, rotated by `angles`; `dt (B, H)`; `state (B, H, P, N)`; `gate` and
    `out` `(B, H P)`. Without `read` the state advances and `out` is left alone.
    """
    wide_u = full(u)
    b, c = (full(turn(m, angles)) for m in (b, c))
    b, c = (m if m.ndim == 3 else m[:, None] for m in (b, c))
    step = F.softplus(full(dt) + full(dt_bias))
    decay = (step * -full(log_a).exp()).exp()
    new = decay[..., None, None] * full(state) + (step[..., None] * wide_u)[..., None] * b[..., None, :]
    state.copy_(new)
    if not read:
        return
    y = full((new * c[..., None, :]).sum(-1).to(u.dtype))
    if skip is not None:
        y = y + full(skip)[:, None] * wide_u
    y = y.flatten(1)
    out.copy_(y if gate is None else y * F.silu(full(gate)))


def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    decay: Tensor,
    memory: Tensor,
    out: Tensor,
    *,
    log_a: Tensor,
    dt_bias: Tensor,
    beta_scale: float,
    norm: Norm,
    gate: Tensor,
    silu_query: bool = False,
    read: bool = True,
) -> None:
    """The gated delta rule, with unit q and k: `S <- a S`, `S <- S + k (b (v - k S))`, `o = q S / sqrt(d)`.

    `out = norm(o) SiLU(gate)`, the norm over each head. `q`, `k` `(B, H, d)`, `v (B, H, e)`, logits `strength` and
    `decay` `(B, H)`, `memory (B, H, d, e)` float32 at least, `gate` and `out` `(B, H e)`.
    """
    q = F.silu(q) if silu_query else q
    q, k = (full(unit(x)) for x in (q, k))
    q = full((q.to(v.dtype) * q.shape[-1] ** -0.5).to(v.dtype))
    beta = torch.sigmoid(full(strength)) * beta_scale
    rate = -full(log_a).exp() * F.softplus(full(decay) + full(dt_bias))
    new = rate.exp()[..., None, None] * memory
    change = beta[..., None] * (full(v) - (k[..., None] * new).sum(-2))
    new = new + k[..., None] * change[..., None, :]
    memory.copy_(new)
    if read:
        o = (q[..., None] * new).sum(-2).to(v.dtype)
        out.copy_(finish(o, gate, norm))


def finish(o: Tensor, gate: Tensor | None, norm: Norm | None) -> Tensor:
    """`norm(o (B, H, e))` over each head, times `SiLU(gate (B, H e))`, as `(B, H e)` in float32 at least."""
    y = full(o)
    if norm is not None:
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + norm.eps) * full(norm.weight)
    y = y.flatten(1)
    return y if gate is None else y * F.silu(full(gate))


def remember(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: Tensor, *, angles: Angles | None = None
) -> None:
    """Writes rotated `k (B, H, d)` and `v` into caches `(B, H, S, d)` at the position."""
    keys.index_copy_(2, position, turn(k, angles)[:, :, None].to(keys.dtype))
    values.index_copy_(2, position, v[:, :, None].to(values.dtype))


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    position: Tensor,
    *,
    angles: Angles | None = None,
    fire: Tensor | None = None,
    silu_query: bool = False,
    norm: Norm | None = None,
    gate: Tensor | None = None,
    residual: bool = False,
) -> None:
    """`out (B, H d) = softmax(q K^T / sqrt(d)) V` over the filled part of the caches, the new token included.

    `q (B, H, d)` not rotated. `fire (B,)` uint8: a row that is 0 reads no cache and leaves `out` as it is. `norm` and
    `gate` as in `finish`; `residual`: added to `out`.
    """
    length = int(position) + 1
    q = turn(F.silu(q) if silu_query else q, angles)
    k, v = (part[:, :, :length].to(q.dtype) for part in (keys, values))
    o = F.scaled_dot_product_attention(q[:, :, None], k, v)[:, :, 0]
    y = finish(o, gate, norm).to(out.dtype)
    if residual:
        y = out + y
    out.copy_(y if fire is None else torch.where(fire[:, None] > 0, y, out))


def choose(logits: Tensor, token: Tensor) -> None:
    """`token (B,)`: where the largest of `logits (B, V)` stands, the first of equals."""
    token.copy_((logits == logits.amax(-1, keepdim=True)).int().argmax(-1))
