"""Causal softmax attention with rotary positions, over everything or over a sliding window.

    o_t = sum_{s <= t, s > t - w} softmax_s(q_t . k_s / sqrt(d)) v_s

Shapes: `B` sequences, `T` tokens, `H` heads of `d = head_dim` channels, `H d = D`; `w` the window (None: all).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from ..context import Context
from ..kernels.softmax import scaled_dot_product
from ..layers import rotary_pairs, rotate_pairs
from .base import Mixer, State

QUERIES = 1024
"""Queries at a time where a segment continues a longer context, so that its mask stays small."""


class Attention(Mixer):
    """Multi-head causal attention: projections without bias, RoPE on queries and keys unless `rope_base` is None.

    Decoding keeps rotated keys and values of all tokens in caches `(B, H, max_length, d)`. A layer that publishes
    leaves the rotated keys and the values of all tokens so far.

    Reference: Vaswani et al. 2017, arXiv 1706.03762; Su et al. 2021, arXiv 2104.09864.
    """

    def __init__(self, d_model: int, *, head_dim: int, rope_base: float | None = 10000.0) -> None:
        super().__init__()
        self.head_dim, self.rope_base = head_dim, rope_base
        self.heads = d_model // head_dim
        self.window: int | None = None
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each `(B, H, T, d)`, of tokens at positions from `start`."""
        q, k, v = self.qkv(x).unflatten(-1, (3 * self.heads, self.head_dim)).chunk(3, dim=2)
        if self.rope_base is not None:
            cos, sin = (t[:, None] for t in rotary_pairs(start, x.shape[1], self.head_dim, self.rope_base, x))
            q, k = rotate_pairs(q, cos, sin), rotate_pairs(k, cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        start = 0 if state is None else state["length"]
        q, k, v = self.project(x, start)
        if state is not None:
            k, v = extend_cache(state, k, v)
        self.publish(context, (k, v))
        o = attend(q, k, v)
        return self.out(o.transpose(1, 2).flatten(2)), state

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        return empty_cache((batch_size, self.heads, max_length, self.head_dim), device, dtype)


class SlidingAttention(Attention):
    """Attention to the last `window` tokens, the current one included.

    Decoding keeps rolling buffers of `min(window, max_length)` keys and values; the token at position p is in slot
    p mod that size.

    Reference: Beltagy, Peters & Cohan 2020, arXiv 2004.05150.
    """

    def __init__(self, d_model: int, *, window: int, head_dim: int, rope_base: float | None = 10000.0) -> None:
        super().__init__(d_model, head_dim=head_dim, rope_base=rope_base)
        self.window: int = window

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        start = 0 if state is None else state["length"]
        q, k, v = self.project(x, start)
        if state is None:
            o = attend_banded(q, k, v, self.window)
        elif x.shape[1] == 1:
            o = self._step(q, k, v, state)
        else:
            o = self._extend(q, k, v, state)
        return self.out(o.transpose(1, 2).flatten(2)), state

    def _step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        size, length = state["k"].shape[2], state["length"]
        state["k"][:, :, length % size] = k[:, :, 0]
        state["v"][:, :, length % size] = v[:, :, 0]
        state["length"] = length + 1
        seen = min(size, length + 1)
        keys, values = state["k"][:, :, :seen].to(q.dtype), state["v"][:, :, :seen].to(q.dtype)
        return F.scaled_dot_product_attention(q, keys, values)

    def _extend(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        size, length, new = state["k"].shape[2], state["length"], k.shape[2]
        kept = min(length, size)
        slots = torch.arange(length - kept, length, device=k.device) % size
        keys = torch.cat([state["k"][:, :, slots].to(k.dtype), k], dim=2)
        values = torch.cat([state["v"][:, :, slots].to(v.dtype), v], dim=2)
        fresh = min(new, size)
        slots = torch.arange(length + new - fresh, length + new, device=k.device) % size
        state["k"][:, :, slots] = k[:, :, new - fresh :].to(state["k"].dtype)
        state["v"][:, :, slots] = v[:, :, new - fresh :].to(state["v"].dtype)
        state["length"] = length + new
        padded = F.pad(q, (0, 0, kept, 0))  # as many queries as keys, so that blocks line up; the first are dropped
        return attend_banded(padded, keys, values, self.window)[:, :, kept:]

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        return super().init_state(batch_size, min(max_length, self.window), device=device, dtype=dtype)


def empty_cache(shape: tuple[int, int, int, int], device: torch.device, dtype: torch.dtype) -> State:
    """Keys and values `(B, H, S, d)` for S tokens, none of them filled."""
    k, v = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
    return {"k": k, "v": v, "length": 0}


def extend_cache(state: State, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Appends `k, v (B, H, T, d)` to a cache; all keys and values so far, in the dtype of `k`."""
    start, room = state["length"], state["k"].shape[2]
    stop = start + k.shape[2]
    if stop > room:
        raise ValueError(f"max_length: the cache has room for {room} tokens, {stop} were given")
    state["k"][:, :, start:stop] = k
    state["v"][:, :, start:stop] = v
    state["length"] = stop
    return state["k"][:, :, :stop].to(k.dtype), state["v"][:, :, :stop].to(k.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Causal attention of `q (B, H, T, d)`, the last T of the S tokens whose keys and values are `(B, H, S, d)`."""
    queries, keys = q.shape[2], k.shape[2]
    if q.is_cuda and torch.is_grad_enabled():
        q = token_by_token(q)
    if window is not None and window >= keys:
        window = None
    if window is None and queries in (1, keys):
        return scaled_dot_product(q, k, v, is_causal=queries > 1)
    if window is None and q.is_cuda and not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(queries, keys))
    if window is None and queries > QUERIES:
        stops = (*range(QUERIES, queries, QUERIES), queries)
        pieces = [
            attend(q[:, :, start:stop], k[:, :, : keys - queries + stop], v[:, :, : keys - queries + stop])
            for start, stop in zip((0, *stops), stops, strict=False)
        ]
        return torch.cat(pieces, dim=2)
    mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    if window is not None:
        mask = mask.triu(keys - queries - window + 1)
    return scaled_dot_product(q, k, v, mask)


def token_by_token(q: Tensor) -> Tensor:
    """`q (B, H, T, d)` with the heads of a token beside each other in memory.

    An output of attention lies as its queries do, and its gradient, where heads are put beside each other again, comes
    token by token: kernels get both in one layout, and `scaled_dot_product` has nothing to copy.
    """
    return q.transpose(1, 2).contiguous().transpose(1, 2)


def attend_banded(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """`attend` over a whole sequence, in blocks of `window` queries that see two blocks of keys when that is less."""
    batch, heads, length, width = q.shape
    if length <= 4 * window:
        return attend(q, k, v, window)
    count = -(-length // window)
    pad = (0, 0, 0, count * window - length)
    q, k, v = (F.pad(x, pad).unflatten(2, (count, window)) for x in (q, k, v))
    before_k, before_v = (F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1] for x in (k, v))
    keys, values = torch.cat([before_k, k], dim=3), torch.cat([before_v, v], dim=3)
    band = torch.ones(window, 2 * window, dtype=torch.bool, device=q.device).tril(window).triu(1)
    first = torch.arange(count, device=q.device)[:, None, None] == 0
    padding = torch.arange(2 * window, device=q.device) < window
    mask = band & ~(first & padding)  # (n, w, 2w): the first block has no block before it
    shape = (batch * heads, count, window, width)
    keys, values = (x.reshape(batch * heads, count, 2 * window, width) for x in (keys, values))
    o = scaled_dot_product(q.reshape(shape), keys, values, mask)
    return o.reshape(batch, heads, count * window, width)[:, :, :length]
